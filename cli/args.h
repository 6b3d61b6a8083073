/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command-line options as rows, so that parsing, help and "did you mean" come from one table.
 *
 *   --name VALUE, --name=VALUE, --flag; "--" ends options; everything else is a positional argument
 *
 * Threads: main only.
 */
#ifndef CLI_ARGS_H
#define CLI_ARGS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum arg_type {
	ARG_FLAG,    /* bool *: true when given */
	ARG_STRING,  /* const char ** */
	ARG_U64,     /* uint64_t *: 12, 3k, 4Mi are not numbers: plain digits */
	ARG_BYTES,   /* uint64_t *: 64, 4KiB, 16MiB, 1GiB */
	ARG_SECONDS, /* uint64_t * nanoseconds: 1.5, 200ms, 3s */
	ARG_REAL,    /* double * */
	ARG_CHOICE,  /* unsigned *: index into choices "a|b|c" */
} arg_type;

typedef struct arg_row {
	const char *name; /* without dashes; NULL ends the table */
	arg_type type;
	void *value;
	const char *meta; /* shown as the value's name, or the choices of ARG_CHOICE */
	const char *help;
	uint64_t min, max; /* numbers; max 0 = none */
	bool hidden;       /* not in --help */
	bool *given;       /* set when the option was there; may be NULL */
} arg_row;

typedef struct arg_usage {
	const char *command; /* "tern train" */
	const char *summary; /* one line */
	const char *synopsis;
	const char *epilogue; /* examples; may be NULL */
	int positional_max;
} arg_usage;

/*
 * Parse argv[1..argc). Returns -1 to go on, else the exit status (0 after --help, 2 after an error, which
 * was printed with the nearest option or the allowed values). positional gets up to positional_max.
 */
int args_parse(const arg_usage *usage, const arg_row *rows, int argc, char **argv, const char **positional);

typedef struct subcommand {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *help;
} subcommand;

/* Run the subcommand that argv[1] names, with an argv of its own; help and mistakes as args_parse. Of usage: command,
   summary and synopsis. */
int args_subcommand(const arg_usage *usage, const subcommand *subcommands, unsigned n, int argc, char **argv);

/* The nearest of the names to what was given (edit distance at most a third of it), or NULL. */
const char *nearest_name(const char *given, const char *const *names);

#endif
