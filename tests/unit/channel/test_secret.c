/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared secrets of a context: from a file and who may read that, replaced while nodes run, two at a time.
 * The rules of the hello itself: tests/unit/link/hello_test.c. Threads: helpers; asserts in the main thread.
 */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "chan_test.h"
#include "channel/ctx_impl.h"

static char dir[64];
static char path[96];

static int set_up(void **state)
{
	(void)state;
	snprintf(dir, sizeof(dir), "/tmp/tern-test-secret-XXXXXX");
	if (!mkdtemp(dir))
		return -1;
	snprintf(path, sizeof(path), "%s/secret", dir);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	unlink(path);
	return rmdir(dir);
}

/* Whole or not at all, as an operator should do it. */
static void put_secret(const char *bytes, size_t n, mode_t mode)
{
	char fresh[128];
	int fd;

	snprintf(fresh, sizeof(fresh), "%s.new", path);
	fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, n), n);
	assert_int_equal(fchmod(fd, mode), 0);
	close(fd);
	assert_int_equal(rename(fresh, path), 0);
}

static const char *const *file_option(void)
{
	static char text[128];
	static const char *const options[] = {text, NULL};

	snprintf(text, sizeof(text), "ctx.secret_file=%s", path);
	return options;
}

static void refused(tern_status expected, const char *words)
{
	tern_ctx_params params = {.options = file_option(), .transports = "loop"};
	tern_ctx *ctx;

	assert_status(tn_ctx_new(&params, &ctx), expected);
	if (!strstr(tern_detail(), words) || !strstr(tern_detail(), path))
		fail_msg("'%s' lacks '%s'", tern_detail(), words);
	/* The file's words are nobody's business. */
	assert_null(strstr(tern_detail(), "sesame"));
}

static void test_bad_files(void **state)
{
	char longer[400];

	(void)state;
	refused(TERN_E_IO, "open");
	put_secret("sesame\n", 7, 0644);
	refused(TERN_E_INSECURE, "chmod 600");
	put_secret("sesame\n", 7, 0620);
	refused(TERN_E_INSECURE, "chmod 600");
	put_secret("\n", 1, 0600);
	refused(TERN_E_OPTION, "empty");
	put_secret("", 0, 0600);
	refused(TERN_E_OPTION, "empty");
	put_secret("sesame\nold\nolder\n", 17, 0600);
	refused(TERN_E_OPTION, "one line");
	put_secret("ses\0ame\n", 8, 0600);
	refused(TERN_E_OPTION, "one line");
	memset(longer, 'x', sizeof(longer));
	put_secret(longer, 256, 0600);
	refused(TERN_E_OPTION, "one line");
	put_secret(longer, sizeof(longer), 0600);
	refused(TERN_E_OPTION, "one line");
	assert_int_equal(unlink(path), 0);
	assert_int_equal(mkdir(path, 0700), 0);
	refused(TERN_E_IO, "plain file");
	assert_int_equal(rmdir(path), 0);
	assert_int_equal(mkfifo(path, 0600), 0);
	refused(TERN_E_IO, "plain file"); /* at once: nobody writes to it */
}

static tern_status connect_as(side *from, const side *to)
{
	tern_status status;

	assert_ok(tern_link_connect(from->ctx, tern_ctx_address(to->ctx), NULL, &from->link));
	status = tern_link_wait(from->link, PATIENCE);
	tern_link_release(from->link);
	return status;
}

/* Ways to say the same secret. */
static void test_sources(void **state)
{
	static const char *const as_option[] = {"ctx.secret=sesame", NULL};
	static const char *const lone_next[] = {"ctx.secret_next=sesame", NULL};
	tern_ctx_params file = {.options = file_option()}, option = {.options = as_option};
	tern_ctx_params param = {.secret = "sesame", .options = file_option()};
	tern_ctx_params next = {.options = lone_next, .transports = "loop"};
	tern_ctx *ctx;
	side a, b, c;

	(void)state;
	put_secret("sesame\r\n", 8, 0640);
	side_open_params(&a, &file);
	side_open_params(&b, &option);
	side_open_params(&c, &param); /* a parameter wins over the file */
	assert_ok(connect_as(&a, &b));
	assert_ok(connect_as(&b, &c));
	assert_ok(connect_as(&c, &a));
	side_close(&a);
	side_close(&b);
	side_close(&c);
	assert_status(tn_ctx_new(&next, &ctx), TERN_E_OPTION);
}

static tern_status both(side *a, side *b)
{
	tern_status there = connect_as(a, b), back = connect_as(b, a);

	assert_int_equal(there, back);
	return there;
}

/* A node that goes from A to B in three steps while another, of which each step comes later, goes with it. */
static void test_roll(void **state)
{
	static const char *const steps[] = {"A\n", "A\nB\n", "B\nA\n", "B\n"};
	static const char *const now[] = {"ctx.secret=A", NULL};
	tern_ctx_params file = {.options = file_option()}, old = {.options = now}, new = {.secret = "B"};
	side node, behind, ahead;
	tern_link *stays;

	(void)state;
	put_secret(steps[0], strlen(steps[0]), 0600);
	side_open_params(&node, &file);
	side_open_params(&behind, &old);
	side_open_params(&ahead, &new);
	side_connect(&node, &behind);
	stays = node.link; /* up all the time: its peers proved themselves when it began */
	for (int i = 0; i < 4; i++) {
		put_secret(steps[i], strlen(steps[i]), 0600);
		assert_status(both(&node, &behind), i < 3 ? TERN_OK : TERN_E_AUTH);
		assert_status(both(&node, &ahead), i > 0 ? TERN_OK : TERN_E_AUTH);
	}
	assert_int_equal(tern_link_get_state(stays), TERN_LINK_UP);
	/* With A first B was the second one, with B first A was: one link each way. */
	assert_int_equal(tern_ctx_counter(node.ctx, "channel.links_next_secret"), 4);
	side_close(&node);
	side_close(&behind);
	side_close(&ahead);
}

/* A file that became bad changes nothing, and is taken as soon as it is mended. */
static void test_bad_replacement(void **state)
{
	tern_ctx_params file = {.options = file_option()}, old = {.secret = "A"}, new = {.secret = "B"};
	side node, behind, ahead;

	(void)state;
	put_secret("A\n", 2, 0600);
	side_open_params(&node, &file);
	side_open_params(&behind, &old);
	side_open_params(&ahead, &new);
	put_secret("", 0, 0600);
	assert_ok(both(&node, &behind));
	put_secret("B\n", 2, 0644);
	assert_ok(both(&node, &behind));
	assert_status(both(&node, &ahead), TERN_E_AUTH);
	assert_int_equal(chmod(path, 0600), 0);
	assert_ok(both(&node, &ahead));
	assert_int_equal(unlink(path), 0);
	assert_ok(both(&node, &ahead));
	side_close(&node);
	side_close(&behind);
	side_close(&ahead);
}

/* What is left in memory once the context is gone: no secret. */
static void test_wiped(void **state)
{
	tn_secrets secrets = {0};
	tn_secret_texts texts;
	tn_options *options;

	(void)state;
	put_secret("sesame\nand another\n", 19, 0600);
	assert_ok(tn_options_load(file_option(), &options));
	assert_ok(tn_secrets_load(&secrets, NULL, options, true));
	tn_secrets_get(&secrets, &texts);
	assert_string_equal(texts.text[0], "sesame");
	assert_string_equal(texts.text[1], "and another");
	tn_secrets_wipe(&secrets);
	for (size_t i = 0; i < sizeof(secrets.now); i++)
		assert_int_equal(((const char *)&secrets.now)[i], 0);
	tn_options_free(options);
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {TEST(test_bad_files), TEST(test_sources), TEST(test_roll),
					   TEST(test_bad_replacement), TEST(test_wiped)};

	test_transport(argc, argv);
	return RUN(tests);
}
