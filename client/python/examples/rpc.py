#!/usr/bin/env python3
"""hbmd's JSON-RPC in a hundred lines: no library, one object a line over control.sock.

    rpc.py                          devices and models, then what happens from now on, until Ctrl-C
    rpc.py METHOD [NAME=JSON ...]   one call: rpc.py hbm.offload sel='"model:m"' to='"host"' force=true
"""
import itertools
import json
import os
import socket
import sys


class HbmError(Exception):
    """What hbmd refuses: its name, as in the table of hbm-rpc(7), and a sentence with what to do."""

    def __init__(self, error):
        super().__init__(error["message"])
        data = error.get("data", {})
        self.code, self.name, self.remedy = error["code"], data.get("error"), data.get("remedy")


class Hbmd:
    """One connection. Answers come in any order, and notifications between them."""

    def __init__(self, directory=None):
        directory = directory or os.environ.get("HBM_RUNTIME_DIR", "/run/hbmd")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(os.path.join(directory, "control.sock"))
        self.lines = self.socket.makefile("rb")
        self.numbers = itertools.count(1)
        self.events = []

    def close(self):
        self.lines.close()
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def receive(self):
        line = self.lines.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("hbmd has closed the connection: see its log, and call again when it is back")
        return json.loads(line)

    def call(self, method, **params):
        """The result; every parameter by its name, as `rpc.discover` lists them."""
        number = next(self.numbers)
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        self.socket.sendall(json.dumps(request).encode() + b"\n")
        while True:
            answer = self.receive()
            if answer.get("method") == "hbm.event":
                self.events.append(answer["params"])
            elif answer.get("id") == number:
                if "error" in answer:
                    raise HbmError(answer["error"])
                return answer["result"]

    def follow(self):
        """What happens from now on, as it does: dicts with seq, time, event, name, detail, pid, uid."""
        self.call("hbm.subscribe")
        while True:
            yield from self.events
            self.events.clear()
            notification = self.receive()
            if notification.get("method") == "hbm.event":
                self.events.append(notification["params"])


def show(hbmd):
    for device in hbmd.call("hbm.devices"):
        print(f"device {device['index']}, {device['name']}, is {device['state']}")
        for tier in device["tiers"]:
            print(f"  {tier['tier']:6} {tier['used'] / 2**30:8.2f} of {tier['capacity'] / 2**30:8.2f} GiB")
    for model in hbmd.call("hbm.models"):
        print(f"model {model['name']}: {model['buffers']} buffers, {model['bytes'] / 2**20:.1f} MiB, {model['state']}")
    for event in hbmd.follow():
        print(event["seq"], event["event"], event["name"] or "", event["detail"] or "", flush=True)


def main(words):
    try:
        with Hbmd() as hbmd:
            if words:
                params = dict(word.split("=", 1) for word in words[1:])
                result = hbmd.call(words[0], **{name: json.loads(value) for name, value in params.items()})
                print(json.dumps(result, indent=2))
            else:
                show(hbmd)
    except KeyboardInterrupt:
        pass
    except (HbmError, OSError) as error:
        sys.exit(f"rpc.py: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
