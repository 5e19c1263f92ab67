/* Addresses for arenas, with a driver that only counts (client/lib/cuda_ranges.h). */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "client/lib/cuda_ranges.h"

#define MIB ((size_t)1 << 20)
#define BASE ((CUdeviceptr)1 << 44)
#define ELSEWHERE ((CUdeviceptr)1 << 45)

static unsigned reserved, freed;

static CUresult reserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wanted,
                        unsigned long long flags)
{
    (void)alignment, (void)wanted, (void)flags;
    reserved++;
    *address = size == CUDA_RANGES_BYTES ? BASE : ELSEWHERE;
    return 0;
}

static CUresult address_free(CUdeviceptr address, size_t size)
{
    (void)size;
    assert_int_equal(address, ELSEWHERE);
    freed++;
    return 0;
}

static const struct cuda_driver driver = {.reserve = reserve, .address_free = address_free};

static CUdeviceptr take(size_t size)
{
    CUdeviceptr address = 0;

    assert_int_equal(cuda_range_take(&driver, size, &address), 0);
    return address;
}

static void test_arenas_lie_side_by_side_in_one_reservation(void **state)
{
    (void)state;
    CUdeviceptr a = take(4 * MIB), b = take(2 * MIB), c = take(64 * MIB);

    assert_int_equal(reserved, 1);
    assert_int_equal(b, a + 4 * MIB);
    assert_int_equal(c, b + 2 * MIB);
    cuda_range_give(&driver, a, 4 * MIB);
    cuda_range_give(&driver, b, 2 * MIB);
    cuda_range_give(&driver, c, 64 * MIB);
    assert_int_equal(freed, 0);
}

static void test_what_is_in_use_is_never_handed_out_again(void **state)
{
    (void)state;
    CUdeviceptr a = take(2 * MIB), b = take(2 * MIB), c = take(2 * MIB);

    cuda_range_give(&driver, a, 2 * MIB);
    assert_int_equal(take(2 * MIB), c + 2 * MIB);
    cuda_range_give(&driver, c + 2 * MIB, 2 * MIB);
    cuda_range_give(&driver, c, 2 * MIB);
    assert_int_equal(take(4 * MIB), c);
    cuda_range_give(&driver, c, 4 * MIB);
    cuda_range_give(&driver, b, 2 * MIB);
    assert_int_equal(take(2 * MIB), BASE);
    cuda_range_give(&driver, BASE, 2 * MIB);
}

static void test_what_does_not_fit_has_a_reservation_of_its_own(void **state)
{
    (void)state;
    unsigned before = reserved;

    assert_int_equal(take(CUDA_RANGES_BYTES - 2 * MIB), BASE);
    assert_int_equal(take(4 * MIB), ELSEWHERE);
    assert_int_equal(take(MIB), ELSEWHERE); /* not of the granularity: the next would not be aligned */
    assert_int_equal(reserved, before + 2);
    cuda_range_give(&driver, ELSEWHERE, 4 * MIB);
    cuda_range_give(&driver, ELSEWHERE, MIB);
    assert_int_equal(freed, 2);
    cuda_range_give(&driver, BASE, CUDA_RANGES_BYTES - 2 * MIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arenas_lie_side_by_side_in_one_reservation),
        cmocka_unit_test(test_what_is_in_use_is_never_handed_out_again),
        cmocka_unit_test(test_what_does_not_fit_has_a_reservation_of_its_own),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
