"""What the NVIDIA driver says is in use, of all GPUs that CUDA_VISIBLE_DEVICES leaves, by index."""
import ctypes
import os


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def used():
    """Bytes; None where there is no driver."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    count, device, memory, total = ctypes.c_uint(), ctypes.c_void_p(), Memory(), 0
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    for index in [int(index) for index in visible.split(",")] if visible.replace(",", "").isdigit() else range(count.value):
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) or nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)):
            return None
        total += memory.used
    return total
