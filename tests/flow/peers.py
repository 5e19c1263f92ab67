"""Daemons with several host devices, each the others' peer."""
from helpers import row_of

TWO, THREE = "host_devices = 2\n", "host_devices = 3\n"


def devices(daemon):
    return {row["uuid"]: row for row in daemon.rpc("hbm.devices")}


def tier_row(device, tier="device"):
    return next(row for row in device["tiers"] if row["tier"] == tier)


def used_on(daemon, uuid, tier="device"):
    """Once what was let go of is given back."""
    def settled():
        row = tier_row(devices(daemon)[uuid], tier)
        return None if row["closing"] else (row["used"],)
    return daemon.wait_for(settled)[0]


def ready(daemon):
    return daemon.wait_for(lambda: all(row["state"] == "ready" and row["worker_pid"] and row["peers"] for row in devices(daemon).values()), 60)


def lies(daemon, name):
    row = row_of(daemon, name)
    return row["tier"], row["device"], row["peer"]


HOME, AWAY = ("device", "host", None), ("peer", "host", "host-1")
