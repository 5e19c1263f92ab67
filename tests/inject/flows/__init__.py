"""The flows that are struck. Each runs up to `with struck():`, does there what may fail, and checks after it what must hold
when it did not: struck() ends with done true if nothing failed, and swallows a typed error."""
from flows import ends, leases, locks, models, moves, screens  # noqa: F401 (each adds its own)
from flows.common import FLOWS  # noqa: F401
