/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the servers of a job over hosts are, and the stages of its workers; what they are called. Threads: main. Tests: tests/e2e/train_test.py, hosts_test.py.
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
	for (char *word = strtok_r(c->text, ", \t\r\n", &save); word && c->count < TRAIN_PROCESSES_MAX;
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
	uint64_t stages = report_to_launcher() ? o->stage : o->stages - 1,
		 all = o->servers + stages * o->workers;

	if (!o->cluster)
		return true;
	if (!read_addresses(o->cluster, c))
		return false;
	for (uint64_t s = 0; s < o->stage && c->count >= all; s++)
		c->lower[s] = c->address[o->servers + s * o->workers + o->index];
	if (c->count == all)
		return true;
	if (o->stages > 1)
		fprintf(stderr,
			"tern train: --cluster names %llu addresses, but the job has %llu: those of %llu "
			"servers, "
			"then "
			"those of stage 0 of each worker, and so on for all but the last stages\n",
			(unsigned long long)c->count, (unsigned long long)all,
			(unsigned long long)o->servers);
	else
		fprintf(stderr,
			"tern train: --cluster names %llu addresses, but the job has %llu servers "
			"(--servers)\n",
			(unsigned long long)c->count, (unsigned long long)o->servers);
	return false;
}

const char *cluster_own(const train_options *o, const train_cluster *c)
{
	uint64_t at = o->role == ROLE_SERVER ? o->index : o->servers + o->stage * o->workers + o->index;

	return at < c->count ? c->address[at] : NULL;
}

void train_name(const train_options *o, bool is_worker, uint64_t index, uint64_t stage,
		char name[TRAIN_NAME_MAX])
{
	if (is_worker && o->stages > 1)
		snprintf(name, TRAIN_NAME_MAX, "worker%u/stage%u", (unsigned)index, (unsigned)stage);
	else
		snprintf(name, TRAIN_NAME_MAX, "%s%u", is_worker ? "worker" : "server", (unsigned)index);
}
