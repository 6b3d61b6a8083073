/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading of /proc and /sys for `tern info` and `tern doctor`. A file that is not there is no error: kernels,
 * drivers and containers differ in what they show. Must not write anything. Threads: main.
 * Tests: tests/e2e/doctor_test.py describes hosts as folders.
 */
#include "host.h"

#include <ctype.h>
#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *root = "";

void host_set_root(const char *path)
{
	root = path;
}

bool host_is_real(void)
{
	return root[0] == '\0';
}

static const char *path_of(const char *fmt, va_list args)
{
	static char path[1024];
	int n = snprintf(path, sizeof(path), "%s", root);

	if (n >= 0 && n < (int)sizeof(path))
		vsnprintf(path + n, sizeof(path) - n, fmt, args);
	return path;
}

#define PATH(name, fmt)              \
	const char *name;            \
	va_list args;                \
	va_start(args, fmt);         \
	(name) = path_of(fmt, args); \
	va_end(args)

static bool first_line(char *text, size_t bytes, const char *path)
{
	FILE *file = fopen(path, "r");
	bool got = file && fgets(text, (int)bytes, file);
	size_t n, skip;

	if (file)
		fclose(file);
	if (!got) {
		text[0] = '\0';
		return false;
	}
	n = strlen(text);
	while (n > 0 && isspace((unsigned char)text[n - 1]))
		text[--n] = '\0';
	skip = strspn(text, " \t");
	memmove(text, text + skip, n - skip + 1);
	return true;
}

bool host_read(char *text, size_t bytes, const char *fmt, ...)
{
	PATH(path, fmt);
	return first_line(text, bytes, path);
}

bool host_u64(uint64_t *value, const char *fmt, ...)
{
	char line[128], *end;
	PATH(path, fmt);

	*value = 0;
	if (!first_line(line, sizeof(line), path))
		return false;
	*value = strtoull(line, &end, 0);
	return end != line;
}

bool host_chosen(char *text, size_t bytes, const char *fmt, ...)
{
	char line[256], *open, *close;
	PATH(path, fmt);

	text[0] = '\0';
	if (!first_line(line, sizeof(line), path))
		return false;
	open = strchr(line, '[');
	close = open ? strchr(open, ']') : NULL;
	if (!close)
		return false;
	*close = '\0';
	snprintf(text, bytes, "%s", open + 1);
	return true;
}

bool host_exists(const char *fmt, ...)
{
	PATH(path, fmt);
	return access(path, F_OK) == 0;
}

bool host_link(char *text, size_t bytes, const char *fmt, ...)
{
	char target[1024];
	const char *slash;
	ssize_t n;
	PATH(path, fmt);

	n = readlink(path, target, sizeof(target) - 1);
	text[0] = '\0';
	if (n <= 0)
		return false;
	target[n] = '\0';
	slash = strrchr(target, '/');
	snprintf(text, bytes, "%s", slash ? slash + 1 : target);
	return true;
}

size_t host_bytes(void *buf, size_t bytes, const char *fmt, ...)
{
	FILE *file;
	size_t n;
	PATH(path, fmt);

	file = fopen(path, "rb");
	n = file ? fread(buf, 1, bytes, file) : 0;
	if (file)
		fclose(file);
	return n;
}

bool host_keyed(char *text, size_t bytes, const char *path, const char *key)
{
	char line[512], full[1024];
	bool found = false;
	FILE *file;

	text[0] = '\0';
	snprintf(full, sizeof(full), "%s%s", root, path);
	file = fopen(full, "r");
	while (file && !found && fgets(line, sizeof(line), file)) {
		char *value = line + strlen(key);

		if (strncmp(line, key, strlen(key)) != 0)
			continue;
		value += strspn(value, " \t:");
		value[strcspn(value, "\n")] = '\0';
		snprintf(text, bytes, "%s", value);
		found = true;
	}
	if (file)
		fclose(file);
	return found;
}

/* mlx5_2 before mlx5_10: the kernel's names end in numbers. */
static int compare(const void *a, const void *b)
{
	return strverscmp(a, b);
}

bool host_list(host_names *names, const char *fmt, ...)
{
	struct dirent *entry;
	DIR *dir;
	PATH(path, fmt);

	names->count = 0;
	dir = opendir(path);
	while (dir && names->count < sizeof(names->name) / sizeof(names->name[0]) && (entry = readdir(dir)))
		if (entry->d_name[0] != '.')
			snprintf(names->name[names->count++], sizeof(names->name[0]), "%.63s", entry->d_name);
	if (dir)
		closedir(dir);
	qsort(names->name, names->count, sizeof(names->name[0]), compare);
	return names->count > 0;
}

/* The folder of this process in version 1's memory hierarchy or in version 2's, whose line is "0::". */
static bool cgroup_folder(char *folder, size_t bytes, bool *v2)
{
	char text[512];

	*v2 = true;
	if (!host_exists("/sys/fs/cgroup/memory") &&
	    host_keyed(text, sizeof(text), "/proc/self/cgroup", "0::")) {
		snprintf(folder, bytes, "/sys/fs/cgroup%s", strcmp(text, "/") == 0 ? "" : text);
		return true;
	}
	*v2 = false;
	snprintf(folder, bytes, "/sys/fs/cgroup/memory");
	return host_exists("/sys/fs/cgroup/memory");
}

bool host_cgroup_memory(uint64_t *limit, uint64_t *used)
{
	char folder[600];
	bool v2;

	*limit = *used = 0;
	if (!cgroup_folder(folder, sizeof(folder), &v2))
		return false;
	/* Inside of a container the folder of the process is often mounted as the root. */
	if (v2 && !host_exists("%s/memory.max", folder))
		snprintf(folder, sizeof(folder), "/sys/fs/cgroup");
	if (!host_u64(limit, v2 ? "%s/memory.max" : "%s/memory.limit_in_bytes", folder) ||
	    *limit >= 1ull << 62)
		return false;
	host_u64(used, v2 ? "%s/memory.current" : "%s/memory.usage_in_bytes", folder);
	return true;
}

char *host_size(uint64_t bytes, char *text, size_t size)
{
	static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
	double value = (double)bytes;
	unsigned unit = 0;

	for (; value >= 1024 && unit < 5; unit++)
		value /= 1024;
	if (bytes == HOST_NO_LIMIT)
		snprintf(text, size, "unlimited");
	else
		snprintf(text, size, "%.*f %s", value == (double)(uint64_t)value ? 0 : 1, value, units[unit]);
	return text;
}
