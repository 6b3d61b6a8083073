/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of store/ckpt.h and store/file.h: a checkpoint is whole or not there. adaptdl#70, HugeCTR#395: torn saves, counts
 * that differ; DeepRec#999: a delta that does not fit its base.
 */
#include "store/ckpt.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/os.h"
#include "cmocka_all.h"

static char path[64];

static int make_dir(void **state)
{
	(void)state;
	snprintf(path, sizeof(path), "/tmp/tern-test-ckpt-XXXXXX");
	return mkdtemp(path) == NULL;
}

static int drop_dir(void **state)
{
	uint64_t *sequences;
	unsigned count;
	char name[96];

	(void)state;
	tn_fault_clear();
	if (tn_ckpt_prune(path, 0) != TERN_OK || tn_ckpt_list(path, &sequences, &count) != TERN_OK)
		return -1;
	for (unsigned i = 0; i < count; i++) {
		snprintf(name, sizeof(name), "%s/ckpt-%020" PRIu64, path, sequences[i]);
		if (tn_dir_remove(AT_FDCWD, name) != TERN_OK)
			return -1;
	}
	free(sequences);
	return rmdir(path);
}

static tern_status add_file(tn_ckpt *ckpt, const char *name, const void *data, uint64_t bytes)
{
	tern_status status;
	tn_file file;

	status = tn_file_create(&file, ckpt->dir, name, NULL, NULL);
	if (status == TERN_OK)
		status = tn_file_write(&file, data, bytes);
	if (status == TERN_OK)
		status = tn_file_finish(&file);
	else
		tn_file_give_up(&file);
	return status == TERN_OK ? tn_ckpt_add(ckpt, &file, json_pack("{s:i}", "rows", 3)) : status;
}

static tern_status name_base(tn_ckpt *ckpt, uint64_t base)
{
	tn_ckpt_reader reader;
	tern_status status;

	if (base == UINT64_MAX)
		return tn_ckpt_name_base(ckpt, ckpt->sequence * 3, NULL);
	status = tn_ckpt_open(&reader, path, base);
	if (status == TERN_OK) {
		status = tn_ckpt_name_base(ckpt, ckpt->sequence * 3, &reader);
		tn_ckpt_close(&reader);
	}
	return status;
}

/* base UINT64_MAX: none. */
static tern_status save(uint64_t sequence, uint64_t base)
{
	tern_status status;
	tn_ckpt ckpt;

	status = tn_ckpt_begin(&ckpt, path, sequence);
	if (status != TERN_OK)
		return status;
	json_object_set_new(ckpt.extra, "job", json_string("test"));
	status = name_base(&ckpt, base);
	if (status == TERN_OK)
		status = add_file(&ckpt, "one", "first", 5);
	if (status == TERN_OK)
		status = add_file(&ckpt, "two", "", 0);
	if (status == TERN_OK)
		return tn_ckpt_commit(&ckpt);
	tn_ckpt_abort(&ckpt);
	return status;
}

static unsigned entries(void)
{
	unsigned n = 0;
	int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *list = fdopendir(dir);

	while (readdir(list))
		n++;
	closedir(list);
	return n - 2;
}

static void assert_good(uint64_t sequence)
{
	tn_ckpt_reader reader;

	assert_ok(tn_ckpt_open(&reader, path, UINT64_MAX));
	assert_int_equal(reader.sequence, sequence);
	assert_int_equal(tn_ckpt_files(&reader), 2);
	assert_int_equal(json_integer_value(json_object_get(tn_ckpt_file(&reader, 0), "rows")), 3);
	assert_ok(tn_ckpt_verify(&reader, NULL, NULL));
	tn_ckpt_close(&reader);
}

static void a_checkpoint_reads_back(void **state)
{
	tn_ckpt_reader reader;

	(void)state;
	assert_status(tn_ckpt_open(&reader, path, UINT64_MAX), TERN_E_NOT_FOUND);
	assert_ok(save(7, UINT64_MAX));
	assert_good(7);
	assert_status(save(7, UINT64_MAX), TERN_E_EXISTS);
	assert_ok(save(UINT64_MAX / 4, UINT64_MAX));
	assert_good(UINT64_MAX / 4);
	assert_status(tn_ckpt_open(&reader, path, 8), TERN_E_NOT_FOUND);
	assert_int_equal(entries(), 2);
}

/* Every call to the outside fails once, in turn: the checkpoint before stays the last one, and nothing is left. */
static void failed_saves_leave_the_last_one(void **state)
{
	const char *const points[] = {"store.file.write", "store.file.sync"};

	(void)state;
	assert_ok(save(1, UINT64_MAX));
	for (unsigned i = 0; i < 2; i++) {
		for (uint64_t nth = 1;; nth++) {
			tern_status status;

			tn_fault_clear();
			assert_ok(tn_fault_set(points[i], nth, 1));
			status = save(2 + i, UINT64_MAX);
			if (status == TERN_OK) {
				assert_true(nth > 3);
				break;
			}
			assert_int_equal(status, TERN_E_IO);
			assert_non_null(strstr(tern_detail(), i ? "fsync" : "make room"));
			assert_int_equal(entries(), 1 + i);
			assert_good(1 + i);
		}
	}
}

/* Killed at any moment: the last good one is there, and the next save clears up. */
static void killed_saves_leave_the_last_one(void **state)
{
	uint64_t last = 1, *sequences;
	tn_ckpt_chain chain;
	unsigned count;

	(void)state;
	assert_ok(save(1, UINT64_MAX));
	for (unsigned round = 0; round < 40; round++) {
		pid_t pid = fork();

		assert_true(pid >= 0);
		if (pid == 0) {
			for (uint64_t s = last + 1;; s++)
				if (save(s, s % 5 ? s - 1 : UINT64_MAX) != TERN_OK) /* most are deltas */
					_exit(1);
		}
		usleep(500 + round * 131);
		kill(pid, SIGKILL);
		assert_int_equal(waitpid(pid, NULL, 0), pid);
		assert_ok(tn_ckpt_list(path, &sequences, &count));
		assert_true(count > 0 && sequences[count - 1] >= last);
		last = sequences[count - 1];
		free(sequences);
		assert_good(last);
		assert_ok(tn_ckpt_prune(path, 2));
		assert_true(entries() <= 2 + 5); /* and what the two go on from */
		assert_good(last);
		assert_ok(tn_ckpt_chain_open(&chain, path, last));
		assert_ok(tn_ckpt_chain_verify(&chain, NULL, NULL));
		tn_ckpt_chain_close(&chain);
	}
}

static void pruning_keeps_what_others_are_based_on(void **state)
{
	uint64_t *sequences;
	unsigned count;

	(void)state;
	for (uint64_t s = 1; s <= 6; s++)
		assert_ok(save(s, s == 5 ? 2 : s == 6 ? 5 : UINT64_MAX));
	assert_ok(tn_ckpt_prune(path, 1));
	assert_ok(tn_ckpt_list(path, &sequences, &count));
	assert_int_equal(count, 3);
	assert_int_equal(sequences[0], 2);
	assert_int_equal(sequences[1], 5);
	free(sequences);
	assert_int_equal(entries(), 3);
}

static int sum_acks(const tn_ckpt_ack *ack, void *arg)
{
	*(uint64_t *)arg += ack->sequence;
	return 0;
}

/* What a follower has not got stays; one that was not heard of for long holds nothing up. */
static void pruning_keeps_what_followers_have_not_got(void **state)
{
	tn_ckpt_ack slow = {.name = "slow", .sequence = 3, .id = 9, .at_ns = tn_wall()};
	tn_ckpt_ack gone = {.name = "gone", .sequence = 1, .at_ns = 5};
	uint64_t sum = 0, *sequences;
	unsigned count;
	char name[96];

	(void)state;
	assert_ok(save(1, UINT64_MAX));
	assert_ok(save(2, UINT64_MAX));
	for (uint64_t s = 3; s <= 6; s++)
		assert_ok(save(s, s - 1));
	assert_ok(save(7, UINT64_MAX));
	assert_ok(tn_ckpt_acks(path, sum_acks, &sum));
	assert_int_equal(sum, 0);
	assert_ok(tn_ckpt_acknowledge(path, &slow));
	assert_ok(tn_ckpt_acknowledge(path, &gone));
	slow.sequence = 5;
	assert_ok(tn_ckpt_acknowledge(path, &slow));
	assert_ok(tn_ckpt_acks(path, sum_acks, &sum));
	assert_int_equal(sum, 6);
	assert_ok(tn_ckpt_prune(path, 1));
	assert_ok(tn_ckpt_list(path, &sequences, &count));
	assert_int_equal(count, 6); /* 5 to 7, and 2 to 4 that 5 goes on from */
	free(sequences);
	slow.at_ns = 5;
	assert_ok(tn_ckpt_acknowledge(path, &slow));
	assert_ok(tn_ckpt_prune(path, 1));
	assert_ok(tn_ckpt_list(path, &sequences, &count));
	assert_int_equal(count, 1);
	free(sequences);
	snprintf(slow.name, sizeof(slow.name), "../x");
	assert_status(tn_ckpt_acknowledge(path, &slow), TERN_E_INVALID);
	snprintf(name, sizeof(name), "%s/" TN_CKPT_FOLLOWERS, path);
	assert_ok(tn_dir_remove(AT_FDCWD, name));
}

static void rename_checkpoint(uint64_t from, uint64_t to)
{
	char a[96], b[96];

	snprintf(a, sizeof(a), "%s/ckpt-%020" PRIu64, path, from);
	snprintf(b, sizeof(b), "%s/ckpt-%020" PRIu64, path, to);
	assert_int_equal(rename(a, b), 0);
}

static void chains_are_followed_to_what_stands_alone(void **state)
{
	uint64_t bytes = 0;
	tn_ckpt_chain chain;

	(void)state;
	assert_ok(save(1, UINT64_MAX));
	for (uint64_t s = 2; s <= 5; s++)
		assert_ok(save(s, s - 1));
	assert_ok(save(6, 3)); /* another branch */
	assert_ok(tn_ckpt_chain_open(&chain, path, 5));
	assert_int_equal(chain.count, 5);
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(chain.links[i].sequence, i + 1);
	assert_ok(tn_ckpt_chain_verify(&chain, NULL, &bytes));
	tn_ckpt_chain_close(&chain);
	assert_ok(tn_ckpt_chain_open(&chain, path, UINT64_MAX));
	assert_int_equal(chain.count, 4);
	assert_int_equal(tn_ckpt_chain_last(&chain)->sequence, 6);
	tn_ckpt_chain_close(&chain);
	assert_ok(tn_ckpt_chain_open(&chain, path, 1));
	assert_int_equal(chain.count, 1);
	tn_ckpt_chain_close(&chain);
}

/* DeepRec#999: a delta is used with a base that is not its own. Here another one of the same number, and none. */
static void a_delta_that_does_not_fit_its_base_is_refused(void **state)
{
	tn_ckpt_chain chain;
	tn_ckpt_reader reader;

	(void)state;
	assert_ok(save(1, UINT64_MAX));
	assert_ok(save(2, 1));
	assert_ok(save(3, 2));
	rename_checkpoint(2, 9);
	assert_status(tn_ckpt_chain_open(&chain, path, 3), TERN_E_CORRUPT);
	assert_non_null(strstr(tern_detail(), "delta to checkpoint 2, which is not there"));
	assert_status(tn_ckpt_chain_open(&chain, path, 9), TERN_E_CORRUPT); /* its manifest says 2 */
	assert_ok(save(2, UINT64_MAX));
	assert_status(tn_ckpt_chain_open(&chain, path, 3), TERN_E_CORRUPT);
	assert_non_null(strstr(tern_detail(), "was replaced"));
	/* It can be looked at all the same, and pruning still keeps what it names. */
	assert_ok(tn_ckpt_open(&reader, path, 3));
	assert_int_equal(reader.base, 2);
	assert_int_equal(reader.deltas, 2);
	tn_ckpt_close(&reader);
	rename_checkpoint(9, 4); /* for drop_dir: prune reads no manifest there */
}

static void change(const char *name, off_t at, const char *text, off_t length)
{
	char full[128];
	int fd;

	snprintf(full, sizeof(full), "%s/ckpt-%020d/%s", path, 1, name);
	fd = open(full, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, text, strlen(text), at), strlen(text));
	if (length >= 0)
		assert_int_equal(ftruncate(fd, length), 0);
	close(fd);
}

static void damage_is_found_and_named(void **state)
{
	tn_ckpt_reader reader;
	char full[128];

	(void)state;
	assert_ok(save(1, UINT64_MAX));
	change("one", 2, "X", -1);
	assert_ok(tn_ckpt_open(&reader, path, 1));
	assert_status(tn_ckpt_verify(&reader, NULL, NULL), TERN_E_CORRUPT);
	assert_non_null(strstr(tern_detail(), "one has checksum"));
	change("one", 2, "r", 4);
	assert_status(tn_ckpt_verify(&reader, NULL, NULL), TERN_E_CORRUPT);
	assert_non_null(strstr(tern_detail(), "4 bytes"));
	snprintf(full, sizeof(full), "%s/ckpt-%020d/one", path, 1);
	assert_int_equal(unlink(full), 0);
	assert_status(tn_ckpt_verify(&reader, NULL, NULL), TERN_E_CORRUPT);
	assert_non_null(strstr(tern_detail(), "missing"));
	tn_ckpt_close(&reader);
	change(TN_CKPT_MANIFEST, 20, "y", -1);
	assert_status(tn_ckpt_open(&reader, path, 1), TERN_E_CORRUPT);
	change(TN_CKPT_MANIFEST, 0, "", 12);
	assert_status(tn_ckpt_open(&reader, path, 1), TERN_E_CORRUPT);
}

static tern_status stop_after(uint64_t bytes, void *arg)
{
	uint64_t *left = arg;

	if (*left < bytes)
		return TERN_E_CANCELED;
	*left -= bytes;
	return TERN_OK;
}

static void pace_sees_each_piece_and_may_end_it(void **state)
{
	static uint8_t data[3u << 20];
	uint64_t left = 2u << 20;
	tn_ckpt ckpt;
	tn_file file;

	(void)state;
	assert_ok(tn_ckpt_begin(&ckpt, path, 1));
	assert_ok(tn_file_create(&file, ckpt.dir, "big", stop_after, &left));
	assert_status(tn_file_write(&file, data, sizeof(data)), TERN_E_CANCELED);
	assert_int_equal(file.bytes, 2u << 20);
	tn_file_give_up(&file);
	tn_ckpt_abort(&ckpt);
	assert_int_equal(entries(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_checkpoint_reads_back, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(failed_saves_leave_the_last_one, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(killed_saves_leave_the_last_one, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(pruning_keeps_what_others_are_based_on, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(pruning_keeps_what_followers_have_not_got, make_dir,
						drop_dir),
		cmocka_unit_test_setup_teardown(chains_are_followed_to_what_stands_alone, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(a_delta_that_does_not_fit_its_base_is_refused, make_dir,
						drop_dir),
		cmocka_unit_test_setup_teardown(damage_is_found_and_named, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(pace_sees_each_piece_and_may_end_it, make_dir, drop_dir),
	};

	return RUN(tests);
}
