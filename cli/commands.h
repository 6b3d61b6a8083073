/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The subcommands of tern: each gets its own argv (argv[0] is the subcommand) and returns the exit status.
 */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

struct train_options;

int cmd_train(int argc, char **argv);
int cmd_perf(int argc, char **argv);
int cmd_server(int argc, char **argv);
int cmd_table(int argc, char **argv);
int cmd_cluster(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_graph(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_top(int argc, char **argv);
int cmd_status(int argc, char **argv);
int cmd_trace(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_demo(int argc, char **argv);

/* The options of `tern train` without any argument. */
void train_defaults(struct train_options *options);
/* Path of this executable, for starting the processes of a job. */
const char *self_path(void);

#endif
