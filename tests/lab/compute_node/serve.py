"""Serve a WSGI application: serve.py PORT MODULE.  It takes what is left of the arguments for its own."""

import importlib
import sys

from waitress import serve

if __name__ == "__main__":
    port, module = sys.argv[1:]
    del sys.argv[1:]
    serve(importlib.import_module(module).application, listen=f"0.0.0.0:{port}")
