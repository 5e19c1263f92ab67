/* The groups of test_core. Each returns how many of its tests failed. */
#pragma once

int core_account_cases(void);
int core_ahead_cases(void);
int core_marks_cases(void);
int core_move_cases(void);
int core_books_cases(void);
int core_code_cases(void);
int core_copy_cases(void);
int core_early_cases(void);
int core_file_cases(void);
int core_health_cases(void);
int core_ledger_cases(void);
int core_live_cases(void);
int core_make_cases(void);
int core_park_cases(void);
int core_peer_cases(void);
int core_pool_cases(void);
int core_prefetch_cases(void);
int core_window_cases(void);
int core_wake_cases(void);
int core_pressure_cases(void);
int core_quarantine_cases(void);
int core_resume_cases(void);
int core_room_cases(void);
int core_track_cases(void);
int core_version_cases(void);
