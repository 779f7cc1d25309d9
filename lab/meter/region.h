/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The plugin's side of the shared region: making it, and what it knows of VMCBs. */
#ifndef VMP_METER_REGION_H
#define VMP_METER_REGION_H

#include <stdbool.h>
#include <stdint.h>

#include "abi.h"

/* Map the file at @path, made and sized as needed.  Return NULL with errno set if that fails. */
struct vmp_meter_region *vmp_region_map(const char *path);

/*
 * Let the header describe @machine.
 *
 * To be called again whenever the machine may have been restored from a snapshot: that brings back the
 * header of the emulator that saved it.  A region of another ABI is emptied.
 */
void vmp_region_describe(struct vmp_meter_region *region, const struct vmp_meter_machine *machine);

/* Count one VMRUN of @vmcb and return the guest that it belongs to, or VMP_GUEST_UNKNOWN. */
uint32_t vmp_region_run(struct vmp_meter_region *region, uint64_t vmcb);

/* Remember that @vmcb is a vCPU of @guest.  Not thread-safe. */
void vmp_region_identify(struct vmp_meter_region *region, uint64_t vmcb, uint32_t guest);

/* Remember that the host goes on at @address after a guest exit; true if that was news.  Not thread-safe. */
bool vmp_region_add_exit(struct vmp_meter_region *region, uint64_t address);
bool vmp_region_is_exit(const struct vmp_meter_region *region, uint64_t address);

#endif /* VMP_METER_REGION_H */
