/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of store/safetensors.h: what is written reads back, Python's json and struct alone read it too, and no
 * damage to a header is believed.
 */
#include "store/safetensors.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"
#include "base/rand.h"
#include "cmocka_all.h"

static char path[64];
static int dir = -1;

static int make_dir(void **state)
{
	(void)state;
	snprintf(path, sizeof(path), "/tmp/tern-test-st-XXXXXX");
	if (!mkdtemp(path))
		return -1;
	dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return dir < 0;
}

static int drop_dir(void **state)
{
	(void)state;
	tn_os_close(&dir);
	return tn_dir_remove(AT_FDCWD, path) != TERN_OK;
}

static const uint64_t KEYS[3] = {0, 7, UINT64_MAX};
static const float ROWS[6] = {1, 2, 3, 4, 5, -6.5f};

static const tn_st_tensor TENSORS[] = {
	{.name = "keys", .dtype = TERN_U64, .shape = {.rank = 1, .dims = {3}}},
	{.name = "values", .dtype = TERN_F32, .shape = {.rank = 2, .dims = {3, 2}}},
	{.name = "none", .dtype = TERN_BF16, .shape = {.rank = 2, .dims = {0, 8}}},
};
static const void *const DATA[] = {KEYS, ROWS, NULL};

static void write_sample(const char *name)
{
	const tn_st_note notes[] = {{"table", "items \"of\" \\ all"}};
	tn_file file;

	assert_ok(tn_file_create(&file, dir, name, NULL, NULL));
	assert_ok(tn_st_write(&file, TENSORS, DATA, 3, notes, 1));
	assert_ok(tn_file_finish(&file));
}

static void what_is_written_reads_back(void **state)
{
	const tn_st_tensor *tensor;
	uint64_t keys[2];
	float rows[2];
	tn_st_file file;

	(void)state;
	write_sample("a.safetensors");
	assert_ok(tn_st_open(&file, dir, "a.safetensors"));
	assert_int_equal(file.count, 3);
	tensor = tn_st_find(&file, "keys");
	assert_non_null(tensor);
	assert_int_equal(tensor->dtype, TERN_U64);
	assert_int_equal(tensor->offset % 8, 0);
	assert_ok(tn_st_read_rows(&file, tensor, 1, 2, keys));
	assert_memory_equal(keys, KEYS + 1, sizeof(keys));
	tensor = tn_st_find(&file, "values");
	assert_int_equal(tensor->shape.dims[1], 2);
	assert_ok(tn_st_read_rows(&file, tensor, 2, 1, rows));
	assert_memory_equal(rows, ROWS + 4, sizeof(rows));
	assert_status(tn_st_read_rows(&file, tensor, 2, 2, rows), TERN_E_INVALID);
	assert_status(tn_st_read_rows(&file, tensor, UINT64_MAX, 2, rows), TERN_E_INVALID);
	assert_int_equal(tn_st_find(&file, "none")->bytes, 0);
	assert_null(tn_st_find(&file, "nothing"));
	tn_st_close(&file);
	assert_status(tn_st_open(&file, dir, "b.safetensors"), TERN_E_NOT_FOUND);
}

/* pytorch#79016, torchrec#2534: the format belongs to nobody's shards, and not to tern alone either. */
static void python_reads_it(void **state)
{
	char command[1024];

	(void)state;
	write_sample("p.safetensors");
	snprintf(command, sizeof(command),
		 "python3 -c 'import json, struct\n"
		 "raw = open(\"%s/p.safetensors\", \"rb\").read()\n"
		 "n, = struct.unpack(\"<Q\", raw[:8])\n"
		 "head, data = json.loads(raw[8:8 + n]), raw[8 + n:]\n"
		 "def get(name, code):\n"
		 "    b, e = head[name][\"data_offsets\"]\n"
		 "    return list(struct.unpack(\"<%%d%%s\" %% ((e - b) // struct.calcsize(code), code), "
		 "data[b:e]))\n"
		 "assert get(\"keys\", \"Q\") == [0, 7, 2**64 - 1]\n"
		 "assert get(\"values\", \"f\") == [1, 2, 3, 4, 5, -6.5]\n"
		 "assert head[\"values\"][\"shape\"] == [3, 2] and head[\"none\"][\"dtype\"] == \"BF16\"\n"
		 "assert head[\"__metadata__\"][\"table\"] == chr(105) + \"tems \\\"of\\\" \\\\ all\"\n'",
		 path);
	assert_int_equal(system(command), 0);
}

static void bad_tensors_are_not_written(void **state)
{
	tn_st_tensor twice[2] = {TENSORS[0], TENSORS[0]}, huge = TENSORS[1], unnamed = TENSORS[0];
	tn_file file;

	(void)state;
	huge.shape.dims[0] = UINT64_MAX / 4;
	unnamed.name[0] = '\0';
	assert_ok(tn_file_create(&file, dir, "bad", NULL, NULL));
	assert_status(tn_st_write(&file, twice, DATA, 2, NULL, 0), TERN_E_INVALID);
	assert_status(tn_st_write(&file, &huge, DATA, 1, NULL, 0), TERN_E_INVALID);
	assert_status(tn_st_write(&file, &unnamed, DATA, 1, NULL, 0), TERN_E_INVALID);
	tn_file_give_up(&file);
	assert_int_equal(faccessat(dir, "bad", F_OK, 0), -1);
}

static tern_status parse(const char *header, uint64_t data_bytes)
{
	tn_st_tensor *tensors;
	unsigned count;
	tern_status status = tn_st_parse("t", header, strlen(header), data_bytes, &tensors, &count);

	free(tensors);
	return status;
}

static void lies_are_refused(void **state)
{
	(void)state;
	assert_ok(parse("{}", 0));
	assert_ok(parse("{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1));
	assert_status(parse("{}", 1), TERN_E_CORRUPT);
	assert_status(parse("[]", 0), TERN_E_CORRUPT);
	assert_status(parse("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1),
		      TERN_E_CORRUPT);
	assert_status(parse("{\"a\":{\"dtype\":\"U9\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1),
		      TERN_E_CORRUPT);
	assert_status(parse("{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1),
		      TERN_E_CORRUPT);
	assert_status(parse("{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,2],"
			    "\"data_offsets\":[0,0]}}",
			    0),
		      TERN_E_CORRUPT);
	assert_status(parse("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
			    "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}",
			    2),
		      TERN_E_CORRUPT); /* overlap */
	assert_status(parse("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2),
		      TERN_E_CORRUPT); /* gap */
	assert_status(parse("{\"a\":7}", 0), TERN_E_CORRUPT);
	assert_status(
		parse("{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1),
		TERN_E_CORRUPT);
}

/* Cut anywhere, or with one byte changed, a file is refused or still describes itself. */
static void damaged_files_are_refused(void **state)
{
	uint8_t raw[1024], damaged[1024];
	tn_rand rand = {5};
	tn_st_file file;
	struct stat st;
	int fd;

	(void)state;
	write_sample("d.safetensors");
	fd = openat(dir, "d.safetensors", O_RDWR | O_CLOEXEC);
	assert_int_equal(fstat(fd, &st), 0);
	assert_in_range(st.st_size, 1, sizeof(raw));
	assert_int_equal(pread(fd, raw, sizeof(raw), 0), st.st_size);
	for (off_t length = st.st_size - 1; length >= 0; length--) {
		assert_int_equal(ftruncate(fd, length), 0);
		assert_status(tn_st_open(&file, dir, "d.safetensors"), TERN_E_CORRUPT);
	}
	for (int i = 0; i < 3000; i++) {
		memcpy(damaged, raw, sizeof(raw));
		damaged[tn_rand_below(&rand, (uint64_t)st.st_size)] = (uint8_t)tn_rand_next(&rand);
		assert_int_equal(pwrite(fd, damaged, (size_t)st.st_size, 0), st.st_size);
		if (tn_st_open(&file, dir, "d.safetensors") != TERN_OK)
			continue;
		for (unsigned k = 0; k < file.count; k++)
			assert_true(file.tensors[k].offset + file.tensors[k].bytes <= (uint64_t)st.st_size);
		tn_st_close(&file);
	}
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(what_is_written_reads_back, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(python_reads_it, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(bad_tensors_are_not_written, make_dir, drop_dir),
		cmocka_unit_test(lies_are_refused),
		cmocka_unit_test_setup_teardown(damaged_files_are_refused, make_dir, drop_dir),
	};

	return RUN(tests);
}
