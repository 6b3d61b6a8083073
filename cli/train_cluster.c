/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the servers of a job over hosts are. Threads: main. Tests: tests/e2e/train_test.py, hosts_test.py.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "train.h"

static bool read_addresses(const char *spec, train_cluster *c)
{
	FILE *file = strchr(spec, ':') ? NULL : fopen(spec, "r");
	char *save = NULL;

	if (!strchr(spec, ':') && !file) {
		fprintf(stderr,
			"tern train: --cluster: '%s' is neither host:port,... nor a readable file (%s)\n",
			spec, strerror(errno));
		return false;
	}
	if (file) {
		size_t n = fread(c->text, 1, sizeof(c->text) - 1, file);

		c->text[n] = '\0';
		fclose(file);
	} else {
		snprintf(c->text, sizeof(c->text), "%s", spec);
	}
	for (char *word = strtok_r(c->text, ", \t\r\n", &save); word && c->count < 256;
	     word = strtok_r(NULL, ", \t\r\n", &save)) {
		if (!strchr(word, ':')) {
			fprintf(stderr, "tern train: --cluster: '%s' is not host:port\n", word);
			return false;
		}
		c->address[c->count++] = word;
	}
	return true;
}

bool cluster_read(const train_options *o, train_cluster *c)
{
	if (!o->cluster)
		return true;
	if (!read_addresses(o->cluster, c))
		return false;
	if (c->count == o->servers)
		return true;
	fprintf(stderr,
		"tern train: --cluster names %llu addresses, but the job has %llu servers (--servers)\n",
		(unsigned long long)c->count, (unsigned long long)o->servers);
	return false;
}
