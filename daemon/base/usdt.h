/* Static probes at the main events, provider `hbmd`, for bpftrace, perf and systemtap: a nop each until somebody listens. What
 * their arguments are is said where they are, and in packaging/hbmd.bt. Without systemtap-sdt-dev's header there are none. */
#pragma once

#if defined(__has_include)
#if __has_include(<sys/sdt.h>)
#include <sys/sdt.h>
#define USDT2(name, a, b) DTRACE_PROBE2(hbmd, name, a, b)
#define USDT3(name, a, b, c) DTRACE_PROBE3(hbmd, name, a, b, c)
#define USDT4(name, a, b, c, d) DTRACE_PROBE4(hbmd, name, a, b, c, d)
#endif
#endif

#ifndef USDT2
#define USDT2(name, a, b) ((void)(a), (void)(b))
#define USDT3(name, a, b, c) ((void)(a), (void)(b), (void)(c))
#define USDT4(name, a, b, c, d) ((void)(a), (void)(b), (void)(c), (void)(d))
#endif
