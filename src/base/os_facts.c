/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the host allows and has: rlimits, huge pages, memory, kernel. A fact that cannot be read is 0 or "".
 * Threads: any. Tests: tests/unit/base/os_test.c.
 */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/check.h"
#include "base/os.h"

uint64_t tn_os_page_bytes(void)
{
	return (uint64_t)sysconf(_SC_PAGESIZE);
}

unsigned tn_os_cpus(void)
{
	cpu_set_t set;
	int n;

	CPU_ZERO(&set);
	n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
	return n > 0 ? (unsigned)n : 1;
}

/* The start of a small file as text without its last newline; "" if it cannot be read. */
static void read_text(const char *path, char *buf, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t at = 0;
	ssize_t n;

	while (fd >= 0 && at < size - 1 && (n = read(fd, buf + at, size - 1 - at)) > 0)
		at += (size_t)n;
	tn_os_close(&fd);
	buf[at] = '\0';
	if (at && buf[at - 1] == '\n')
		buf[at - 1] = '\0';
}

static uint64_t read_number(const char *path)
{
	char text[32];

	read_text(path, text, sizeof(text));
	return strtoull(text, NULL, 10);
}

/* "Key:  123 kB" in /proc/meminfo */
static uint64_t meminfo(const char *text, const char *key)
{
	const char *line = strstr(text, key);

	return line ? strtoull(line + strlen(key), NULL, 10) : 0;
}

static void get_rlimit(int what, uint64_t *soft, uint64_t *hard)
{
	struct rlimit limit;

	if (getrlimit((__rlimit_resource_t)what, &limit) != 0)
		return;
	*soft = limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
	*hard = limit.rlim_max == RLIM_INFINITY ? UINT64_MAX : limit.rlim_max;
}

/* The bracketed word of "always within_size [never]". */
static void read_choice(const char *path, char *buf, size_t size)
{
	char text[128], *open, *close = NULL;

	read_text(path, text, sizeof(text));
	open = strchr(text, '[');
	if (open)
		close = strchr(open, ']');
	if (close)
		snprintf(buf, size, "%.*s", (int)(close - open - 1), open + 1);
	else
		snprintf(buf, size, "?");
}

void tn_os_limits_get(tn_os_limits *limits)
{
	struct utsname uts;
	char text[4096];

	*limits = (tn_os_limits){0};
	get_rlimit(RLIMIT_MEMLOCK, &limits->memlock_bytes, &limits->memlock_bytes_max);
	get_rlimit(RLIMIT_NOFILE, &limits->files, &limits->files_max);
	read_text("/proc/meminfo", text, sizeof(text));
	limits->memory_bytes = meminfo(text, "MemTotal:") << 10;
	limits->memory_bytes_available = meminfo(text, "MemAvailable:") << 10;
	limits->huge_pages = read_number("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
	limits->huge_pages_free = read_number("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
	limits->map_count_max = read_number("/proc/sys/vm/max_map_count");
	read_choice("/sys/kernel/mm/transparent_hugepage/shmem_enabled", limits->shmem_thp,
		    sizeof(limits->shmem_thp));
	read_text("/proc/sys/kernel/random/boot_id", limits->boot_id, sizeof(limits->boot_id));
	if (uname(&uts) == 0) {
		snprintf(limits->kernel, sizeof(limits->kernel), "%.63s", uts.release);
		snprintf(limits->host, sizeof(limits->host), "%.63s", uts.nodename);
	}
}

uint64_t tn_os_raise_files(uint64_t wanted)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
		return 0;
	if (limit.rlim_cur < wanted) {
		struct rlimit raised = {.rlim_cur = TN_MIN(wanted, limit.rlim_max),
					.rlim_max = limit.rlim_max};

		if (setrlimit(RLIMIT_NOFILE, &raised) == 0)
			return raised.rlim_cur;
	}
	return limit.rlim_cur;
}
