"""The tests cannot reach the network: neither this process nor those that it starts, kernels included."""

import socket
import subprocess
import sys
import urllib.request

import nbformat
import pytest
from nbformat import v4

from tools.build_notebooks import execute

REFUSED = "The tests run without a network"
# An address that is reserved for documentation: nobody answers there, with or without this block.
TRY = """
import socket
try:
    socket.create_connection(("192.0.2.1", 80), 1)
except OSError as error:
    print(error)
"""


def test_this_process_is_offline():
    with pytest.raises(OSError, match=REFUSED):
        socket.create_connection(("192.0.2.1", 80), timeout=1)
    with pytest.raises(OSError, match=REFUSED):
        urllib.request.urlopen("http://example.org", timeout=1)
    with socket.socket() as plain, pytest.raises(OSError, match=REFUSED):
        plain.connect_ex(("192.0.2.1", 80))


def test_this_machine_can_be_reached():
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=5).close()


def test_a_started_process_is_offline():
    run = subprocess.run([sys.executable, "-c", TRY], capture_output=True, text=True, check=True)
    assert REFUSED in run.stdout


def test_a_kernel_is_offline(tmp_path):
    notebook = v4.new_notebook(cells=[v4.new_code_cell(TRY)])
    notebook.nbformat_minor = 5
    assert REFUSED in nbformat.writes(execute(notebook, tmp_path))
