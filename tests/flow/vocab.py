"""Numbers of proto/*.def by name."""
import re

from conftest import ROOT


def rows(file, macro):
    found = re.findall(rf'^{macro}\((\w+), (\d+), "([^"]*)"', (ROOT / "proto" / file).read_text(), re.M)
    return {name: int(number) for name, number, _ in found}, {text: int(number) for _, number, text in found}


DTYPES, DTYPES_BY_TEXT = rows("dtypes.def", "DTYPE")
CODECS, CODECS_BY_TEXT = rows("codecs.def", "CODEC")
