/* int8 in all granularities. */
#include "kernels/int8.cuh"

UNIT_KERNELS(int8);
