"""Hosts with their own addresses on one machine: network namespaces on a switch. Linux, root and iproute2 (`ip`)."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

INTERFACE = "eth0"


class Host(NamedTuple):
    name: str
    address: str

    def start(self, arguments: Sequence[str], **environment: str) -> subprocess.Popen[str]:
        """A Python process on this host, which knows nothing of the networks of the machine."""
        command = ["ip", "netns", "exec", self.name, sys.executable, *arguments]
        everything = {**os.environ, "GLOO_SOCKET_IFNAME": INTERFACE, **environment}
        return subprocess.Popen(command, env=everything, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def obstacle() -> str | None:
    """Why there can be no such hosts here, or `None`."""
    if shutil.which("ip") is None:
        return "iproute2 (ip) is not installed"
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "only root may make network namespaces"
    try:
        with hosts(1):
            return None
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.strip()}"


@contextlib.contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """So many hosts, 10.77.0.1 and so on, that reach each other and nothing else."""
    tag = f"krr{secrets.token_hex(3)}"
    switch, names = f"{tag}switch", [f"{tag}host{number}" for number in range(count)]
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for number, name in enumerate(names):
            _ip("netns", "add", name)
            port = f"port{number}"
            _ip("-n", name, "link", "add", INTERFACE, "type", "veth", "peer", "name", port, "netns", switch)
            _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
            _ip("-n", name, "address", "add", f"10.77.0.{number + 1}/24", "dev", INTERFACE)
            _ip("-n", name, "link", "set", INTERFACE, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield [Host(name, f"10.77.0.{number + 1}") for number, name in enumerate(names)]
    finally:
        for name in [*names, switch]:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def sent_bytes(interface: str = INTERFACE) -> int | None:
    """What an interface of this process's host has sent, headers and all; `None` if there is none of that name."""
    with open("/proc/self/net/dev") as file:
        for line in file:
            name, _, numbers = line.partition(":")
            if name.strip() == interface:
                return int(numbers.split()[8])
    return None


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True)
