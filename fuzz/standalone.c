/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target without libFuzzer: each file of the given folders, then mutations of them from a fixed
 * seed. So that every fuzz target is compiled and executed in the ordinary tests, by any compiler.
 * Threads: one. It finds nothing that ./dev fuzz would not find faster.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rand.h"

#define INPUT_MAX  (64u << 10)
#define INPUTS_MAX 256
#define ROUNDS     4000

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct input {
	uint8_t *data;
	size_t size;
} input;

static input inputs[INPUTS_MAX];
static unsigned n_inputs;

static void add_input(const uint8_t *data, size_t size)
{
	input *in;

	if (n_inputs == INPUTS_MAX)
		return;
	in = &inputs[n_inputs++];
	in->data = malloc(size + 1);
	if (!in->data)
		exit(2);
	memcpy(in->data, data, size);
	in->size = size;
}

static void add_folder(const char *path)
{
	static uint8_t buf[INPUT_MAX];
	DIR *dir = opendir(path);
	struct dirent *entry;

	if (!dir) {
		perror(path);
		exit(2);
	}
	while ((entry = readdir(dir))) {
		char name[4096];
		FILE *file;

		if (entry->d_name[0] == '.')
			continue;
		snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);
		file = fopen(name, "rb");
		if (file) {
			add_input(buf, fread(buf, 1, sizeof(buf), file));
			fclose(file);
		}
	}
	closedir(dir);
}

/* Copy an input (or none), then change, insert and cut at random. */
static size_t mutate(tn_rand *rand, uint8_t *buf)
{
	const input *from = n_inputs ? &inputs[tn_rand_below(rand, n_inputs)] : NULL;
	size_t size = from ? from->size : tn_rand_below(rand, 256);
	uint64_t changes = 1 + tn_rand_below(rand, 8);

	if (from)
		memcpy(buf, from->data, size);
	for (size_t i = 0; !from && i < size; i++)
		buf[i] = (uint8_t)tn_rand_next(rand);
	while (changes--) {
		uint64_t at = tn_rand_below(rand, size + 1);

		switch (tn_rand_below(rand, 4)) {
		case 0:
			if (at < size)
				buf[at] ^= (uint8_t)(1u << tn_rand_below(rand, 8));
			break;
		case 1:
			if (at < size)
				buf[at] = (uint8_t)(tn_rand_below(rand, 2) ? 0xff : tn_rand_next(rand));
			break;
		case 2:
			size = at; /* cut */
			break;
		default:
			if (size + 16 < INPUT_MAX) {
				memmove(buf + at + 16, buf + at, size - at);
				for (unsigned i = 0; i < 16; i++)
					buf[at + i] = (uint8_t)tn_rand_next(rand);
				size += 16;
			}
		}
	}
	return size;
}

int main(int argc, char **argv)
{
	static uint8_t buf[INPUT_MAX];
	tn_rand rand = {1};

	for (int i = 1; i < argc; i++)
		add_folder(argv[i]);
	LLVMFuzzerTestOneInput(buf, 0);
	for (unsigned i = 0; i < n_inputs; i++)
		LLVMFuzzerTestOneInput(inputs[i].data, inputs[i].size);
	for (unsigned round = 0; round < ROUNDS; round++) {
		/* an exact copy on the heap, so that the address sanitizer sees reads past its end */
		size_t size = mutate(&rand, buf);
		uint8_t *exact = malloc(size ? size : 1);

		if (!exact)
			return 2;
		memcpy(exact, buf, size);
		LLVMFuzzerTestOneInput(exact, size);
		free(exact);
	}
	for (unsigned i = 0; i < n_inputs; i++)
		free(inputs[i].data);
	printf("%u inputs, %u mutations\n", n_inputs, ROUNDS);
	return 0;
}
