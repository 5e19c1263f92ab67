/* The core in a world of its own (core_world.h): what moves, what is encoded, what is remembered. */
#include "core_cases.h"

int main(void)
{
    return core_account_cases() + core_advise_cases() + core_ahead_cases() + core_books_cases() + core_build_cases() + core_code_cases() +
           core_copy_cases() + core_early_cases() + core_file_cases() + core_health_cases() +
           core_ledger_cases() + core_live_cases() + core_lock_wait_cases() + core_lossless_cases() + core_make_cases() +
           core_marks_cases() + core_move_cases() + core_next_cases() + core_observe_cases() + core_op_cases() +
           core_park_cases() + core_peer_cases() + core_pool_cases() + core_prefetch_cases() +
           core_pressure_cases() + core_quarantine_cases() + core_rename_cases() + core_restart_cases() +
           core_resume_cases() + core_room_cases() + core_shared_move_cases() + core_store_cases() +
           core_track_cases() + core_undo_cases() + core_version_cases() + core_wake_cases() +
           core_window_cases();
}
