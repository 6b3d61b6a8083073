/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench-budget: see budget.h. Without arguments: the names of the cases.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "budget.h"

#define WARM 300u

/* callgrind counts between its call and its return. */
__attribute__((noinline)) void budget_measured(const budget_case *c, pair *p, unsigned long count);

void budget_measured(const budget_case *c, pair *p, unsigned long count)
{
	for (unsigned long i = 0; i < count; i++)
		c->once(p);
}

int main(int argc, char **argv)
{
	static pair p;
	const budget_case *c = budget_cases;

	if (argc != 3) {
		for (; c->name; c++)
			printf("%s\n", c->name);
		return argc == 1 ? 0 : 2;
	}
	while (c->name && strcmp(c->name, argv[1]) != 0)
		c++;
	if (!c->name) {
		fprintf(stderr, "bench-budget: there is no case '%s'\n", argv[1]);
		return 2;
	}
	pair_begin(&p, c->transport, c->owner);
	if (c->begin)
		c->begin(&p);
	for (unsigned i = 0; i < WARM; i++)
		c->once(&p);
	for (unsigned i = 0; i < WARM; i++)
		pair_turn(&p);
	budget_measured(c, &p, strtoul(argv[2], NULL, 10));
	fflush(stdout);
	_Exit(0); /* the ends of contexts are not counted and would wait */
}
