"""Refuses every network connection except to this machine itself.

Python imports a module of this name at start-up. conftest.py puts this folder on PYTHONPATH, so the tests,
their workers and the notebooks' kernels are all offline, while Jupyter still reaches its kernels.
"""

import ipaddress
import socket


def refuse(host):
    raise OSError(f"The tests run without a network: no connection to {host}.")


def is_local(host):
    if host in ("", "localhost", None):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def guarded(method):
    def connect(self, address, *rest):
        if self.family in (socket.AF_INET, socket.AF_INET6) and not is_local(address[0]):
            refuse(address[0])
        return method(self, address, *rest)

    return connect


def guarded_lookup(method):
    def lookup(host, *arguments, **options):
        name = host.decode() if isinstance(host, bytes) else host
        try:
            ipaddress.ip_address(name or "127.0.0.1")
        except ValueError:
            if name != "localhost":
                refuse(name)
        return method(host, *arguments, **options)

    return lookup


# Once a process, also where conftest.py runs this file a second time.
if not getattr(socket, "only_local", False):
    socket.only_local = True
    socket.socket.connect = guarded(socket.socket.connect)
    socket.socket.connect_ex = guarded(socket.socket.connect_ex)
    socket.getaddrinfo = guarded_lookup(socket.getaddrinfo)
