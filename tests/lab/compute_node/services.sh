#!/bin/sh
# services.sh: OpenStack's services with their database and message queue, over /run/services, until it is killed.
set -eu
cd /run/services
export PYTHONPATH=/run/services HOME=/run/services
mkdir -p mysql rabbit images logs
cat nova-database.conf >>nova.conf

run() { # NAME COMMAND...: in the background, with a log of its own
	name=$1
	shift
	"$@" >"logs/$name.log" 2>&1 &
}
until_it() { # COMMAND...: try until it succeeds
	until "$@" >/dev/null 2>&1; do sleep 0.3; done
}
sql() { mariadb --no-defaults --socket=/run/services/mysql.sock -e "$1"; }
nova_manage() { nova-manage --config-file nova.conf "$@" >>logs/nova-manage.log 2>&1; }

export RABBITMQ_NODENAME=rabbit@localhost RABBITMQ_MNESIA_BASE=/run/services/rabbit RABBITMQ_LOG_BASE=/run/services/rabbit
export RABBITMQ_CONFIG_FILE=/run/services/rabbitmq.conf RABBITMQ_ENABLED_PLUGINS_FILE=/run/services/plugins
echo 'loopback_users = none' >rabbitmq.conf
echo '[].' >plugins
run rabbitmq /usr/lib/rabbitmq/bin/rabbitmq-server
mariadb-install-db --no-defaults --user=root --datadir=/run/services/mysql --skip-test-db >logs/install-db.log 2>&1
run mariadb mariadbd --no-defaults --user=root --datadir=/run/services/mysql --socket=/run/services/mysql.sock \
	--skip-grant-tables --bind-address=127.0.0.1 --innodb-flush-log-at-trx-commit=0 --skip-log-bin
until_it sql 'select 1'
for name in placement glance nova_api nova nova_cell0; do sql "create database $name"; done

for name in nova glance; do
	sed 's/keystonemiddleware.auth_token:filter_factory/trusting:filter_factory/' \
		/etc/$name/*api-paste.ini >$name-api-paste.ini
done
run neutron python3 no_networks.py
run placement env OS_PLACEMENT_CONFIG_DIR=/run/services python3 serve.py 8778 placement.wsgi.api
glance-manage --config-file glance-api.conf db_sync >logs/glance-manage.log 2>&1
run glance glance-api --config-file glance-api.conf
nova_manage api_db sync
nova_manage cell_v2 map_cell0 --database_connection mysql+pymysql://root@127.0.0.1/nova_cell0
nova_manage cell_v2 create_cell --name cell1
nova_manage db sync
for name in conductor scheduler; do run nova-$name nova-$name --config-file nova.conf; done
run nova-api env OS_NOVA_CONFIG_DIR=/run/services OS_NOVA_CONFIG_FILES='nova-api-paste.ini;nova.conf' \
	python3 serve.py 8774 nova.wsgi.osapi_compute
echo ready >ready
wait
