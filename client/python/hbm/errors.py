"""What libhbm's errors are in Python: Error, with its name and number, and where the language has a word for it also
that exception: `except MemoryError` catches NO_MEMORY."""
from __future__ import annotations


class Error(Exception):
    """A call of libhbm failed. str() is the sentence: what, why, what to do."""

    name = "ERROR"
    code = 0


_BASES = {"NOT_FOUND": (KeyError,), "STALE": (KeyError,), "INVALID": (ValueError,), "TOO_LARGE": (ValueError,),
          "DENIED": (PermissionError,), "NO_MEMORY": (MemoryError,), "TIMEOUT": (TimeoutError,),
          "NO_DAEMON": (ConnectionError,), "DISCONNECTED": (ConnectionError,), "EXISTS": (FileExistsError,),
          "IO": (OSError,), "NO_SPACE": (OSError,)}


def _class_name(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


_classes: dict[str, type[Error]] = {}


def error_class(name: str) -> type[Error]:
    """Of an error's name in proto/errors.def: error_class("NOT_FOUND") is hbm.NotFound."""
    if name not in _classes:
        _classes[name] = type(_class_name(name), (Error, *_BASES.get(name, ())),
                              {"name": name, "__module__": "hbm", "__str__": lambda self: self.args[0]})
    return _classes[name]


def error_of(name: str, code: int, sentence: str) -> Error:
    error = error_class(name)(sentence)
    error.code = code
    return error


NotFound = error_class("NOT_FOUND")
Busy = error_class("BUSY")
Denied = error_class("DENIED")
Exists = error_class("EXISTS")
NoMemory = error_class("NO_MEMORY")
NoDaemon = error_class("NO_DAEMON")
Disconnected = error_class("DISCONNECTED")
Timeout = error_class("TIMEOUT")
Unsupported = error_class("UNSUPPORTED")
Lost = error_class("LOST")
Invalid = error_class("INVALID")
