/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dataflow graphs: build a model, add its gradients, split the training job over devices and look at the
 * plan before anything runs.
 *
 *   graph   nodes (an op with attributes) joined by tensors with a type and a shape; variables are tensors
 *           that keep their value from step to step; ports are the names under which a caller feeds and
 *           fetches tensors ("images", "labels", "loss", "correct")
 *   plan    the training job of a graph on S parameter servers and W workers: one graph per device, the
 *           edges between devices, and for each edge how it travels and which copies it costs
 *
 * Everything here runs in the calling thread, never blocks on anything but memory allocation and starts
 * no thread. A graph or plan may be read from several threads at once, and changed from one thread while
 * no other uses it. Failures return a status; tern_detail() then names the node and what is wrong.
 * Objects are created and destroyed by the caller; strings that are passed in are copied.
 */
#ifndef TERN_GRAPH_H
#define TERN_GRAPH_H

#include <tern/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_graph tern_graph;
typedef struct tern_plan tern_plan;

/* A tensor of one graph: a small dense number. */
typedef uint32_t tern_value;
#define TERN_VALUE_NONE UINT32_MAX

/* ---- building ---------------------------------------------------------------------------------- */

/* How a variable starts. Without data every element is a pure function of (seed, variable name, index). */
typedef enum tern_init_kind {
	TERN_INIT_ZEROS,
	TERN_INIT_CONSTANT,       /* every element is `value` */
	TERN_INIT_UNIFORM,        /* uniform in [-value, value) */
	TERN_INIT_XAVIER_UNIFORM, /* uniform, bound sqrt(6 / (fan_in + fan_out)): Glorot and Bengio 2010 */
	TERN_INIT_HE_UNIFORM,     /* uniform, bound sqrt(6 / fan_in): He et al. 2015 */
	TERN_INIT_DATA,           /* the elements in `data`, dense and row-major, which are copied */
} tern_init_kind;

typedef struct tern_init {
	tern_init_kind kind;
	float value;
	uint64_t seed;
	const float *data; /* TERN_INIT_DATA only */
} tern_init;

/* An attribute of a node. Exactly one of the values is read, by what the op asks for under that name. */
typedef enum tern_attr_type {
	TERN_ATTR_INT,
	TERN_ATTR_FLOAT,
	TERN_ATTR_INTS,
	TERN_ATTR_FLOATS,
} tern_attr_type;

#define TERN_ATTR_INTS_MAX 16 /* pads of a tensor of rank 8 */

typedef struct tern_attr {
	const char *name;
	tern_attr_type type;
	int64_t i;
	double f;
	uint32_t n_ints;
	int64_t ints[TERN_ATTR_INTS_MAX];
	uint32_t n_floats;
	double floats[TERN_ATTR_INTS_MAX];
} tern_attr;

/* An empty graph. TERN_E_NOMEM. */
tern_status tern_graph_create(const char *name, tern_graph **graph);
/* Free a graph; NULL is allowed. */
void tern_graph_destroy(tern_graph *graph);

/*
 * The symbolic dimension of a name ("batch"): a value to put into tern_shape.dims whose size is known only
 * when the plan runs. The same name gives the same value. TERN_E_LIMIT past 16 names.
 */
tern_status tern_graph_symbol(tern_graph *graph, const char *name, uint64_t *dim);
/* Whether a dim is symbolic. */
int tern_dim_is_symbolic(uint64_t dim);

/* A tensor that the caller feeds at each step. TERN_E_EXISTS, TERN_E_INVALID, TERN_E_NOMEM. */
tern_status tern_graph_placeholder(tern_graph *graph, const char *name, tern_dtype dtype,
				   const tern_shape *shape, tern_value *value);
/* A tensor that keeps its value from step to step. The shape has no symbolic dims. dtype is TERN_F32. */
tern_status tern_graph_variable(tern_graph *graph, const char *name, tern_dtype dtype,
				const tern_shape *shape, const tern_init *init, tern_value *value);
/* A tensor that never changes; data (dense, row-major) is copied. The shape has no symbolic dims. */
tern_status tern_graph_constant(tern_graph *graph, const char *name, tern_dtype dtype,
				const tern_shape *shape, const void *data, tern_value *value);

/*
 * Add a node: one of the ops in docs/GRAPH-OPS.md, which says for each its inputs, outputs, attributes and
 * types, and whether it has a gradient. Names and meanings are ONNX's where ONNX has the op.
 *
 * Values go to outputs[0..n_outputs-1]; outputs that are not asked for exist all the same. name must be
 * unique in the graph. TERN_E_NOT_FOUND (unknown op), TERN_E_SHAPE (types or shapes do not fit),
 * TERN_E_INVALID (number of inputs, attribute), TERN_E_EXISTS (name taken), TERN_E_NOMEM.
 */
tern_status tern_graph_node(tern_graph *graph, const char *op, const char *name, const tern_value *inputs,
			    uint32_t n_inputs, const tern_attr *attrs, uint32_t n_attrs, tern_value *outputs,
			    uint32_t n_outputs);
/* A control edge: the node that makes `later` starts only when the node that makes `earlier` is done. */
tern_status tern_graph_control(tern_graph *graph, tern_value earlier, tern_value later);

/*
 * Model parallelism by hand: nodes that are added from now on belong on that device of a worker (a stage, from 0
 * on), and their gradients with them; TERN_DEVICE_ANY (the default): where the plan puts them. See
 * tern_plan_params.stages. TERN_E_INVALID.
 */
#define TERN_DEVICE_ANY  (-1)
#define TERN_DEVICES_MAX 256
tern_status tern_graph_set_device(tern_graph *graph, int32_t device);
/* The same for the node that makes a value. TERN_E_NOT_FOUND, TERN_E_INVALID. */
tern_status tern_graph_place(tern_graph *graph, tern_value value, int32_t device);

/*
 * Mark a variable whose rows a Gather picks (an embedding): in jobs with servers it is kept as rows of a table of the
 * parameter server instead of being sent whole. A worker pulls the rows that its batch names, each once, and pushes
 * their gradients; the optimiser runs at the table, for rows that were named. tern_plan_create fails with TERN_E_INVALID
 * where it can't be, and says why: it must be a matrix that one Gather along axis 0 reads and nothing else, and gradients
 * must not be clipped. TERN_E_NOT_FOUND, TERN_E_INVALID (no variable), TERN_E_NOMEM.
 */
tern_status tern_graph_sparse(tern_graph *graph, tern_value variable);

/* Name a placeholder as the input port `port`, or any tensor as the output port `port`. */
tern_status tern_graph_input(tern_graph *graph, const char *port, tern_value value);
tern_status tern_graph_output(tern_graph *graph, const char *port, tern_value value);

/*
 * Append the nodes that compute d loss / d wrt[i] and store their values in grads[i] (same shape as
 * wrt[i]). loss must be a scalar f32. TERN_E_INVALID names a variable that loss does not depend on, or an
 * op on the way that has no gradient; after a failure the graph may hold nodes that nothing uses.
 */
tern_status tern_graph_gradients(tern_graph *graph, tern_value loss, const tern_value *wrt, uint32_t n_wrt,
				 tern_value *grads);

/* Check the whole graph: references, shapes, cycles by control edges. The text names the node. */
tern_status tern_graph_check(const tern_graph *graph);

typedef struct tern_value_info {
	const char *name; /* lives as long as the graph and is not changed */
	tern_dtype dtype;
	tern_shape shape; /* may hold symbolic dims */
} tern_value_info;
/* TERN_E_NOT_FOUND for a number that is no tensor of the graph. */
tern_status tern_graph_value(const tern_graph *graph, tern_value value, tern_value_info *info);

typedef struct tern_graph_info {
	const char *name;
	uint32_t nodes;
	uint32_t variables;
	uint64_t parameters; /* elements of the variables that are trained: without averages (ApplyEma) */
	uint64_t parameter_bytes; /* their bytes */
} tern_graph_info;
/* The name and the numbers of a graph; the name lives as long as the graph. */
void tern_graph_info_get(const tern_graph *graph, tern_graph_info *info);

/*
 * The ports by number: input ports and output ports in the order in which they were named.
 * TERN_E_NOT_FOUND past the last one.
 */
tern_status tern_graph_port(const tern_graph *graph, uint32_t number, const char **name, int *is_input,
			    tern_value *value);
/* The name of a symbolic dim: it lives as long as the graph. NULL for a dim that is none of the graph's. */
const char *tern_graph_symbol_name(const tern_graph *graph, uint64_t dim);

typedef struct tern_node_info {
	const char *op, *name; /* live as long as the graph and are not changed, as the lists below */
	const tern_value *inputs, *outputs;
	uint32_t n_inputs, n_outputs;
} tern_node_info;
/* Node `number`, in the order in which nodes were added. TERN_E_NOT_FOUND past the last one. */
tern_status tern_graph_node_get(const tern_graph *graph, uint32_t number, tern_node_info *info);

/* One line per node, in order. Free with tern_graph_text_free. NULL if memory is out. */
char *tern_graph_text(const tern_graph *graph);
/* The graph in the DOT language, for Graphviz to draw. As tern_graph_text. */
char *tern_graph_dot(const tern_graph *graph);
void tern_graph_text_free(char *text);

/* ---- models ------------------------------------------------------------------------------------ */

/* Zero it, then set what differs. */
typedef struct tern_model_params {
	uint64_t seed;    /* of the initialisers */
	uint64_t inputs;  /* features per row; 0 = 784, or what the model is made for */
	uint64_t classes; /* 0 = 10, or what the model is made for */
	uint64_t steps;   /* of sequences; 0 = what the model is made for */
} tern_model_params;

/* As steps: a symbolic dim of that name, for batches whose sequences have other lengths each time. */
#define TERN_STEPS_SYMBOLIC UINT64_MAX

/*
 * A built-in model. Trained parameters and inputs of those of the published comparison:
 *
 *   fcn5           53,600,266   images (batch, 784): four hidden layers of 4,096
 *   alexnet        46,247,882   images (batch, 3, 224, 224)
 *   vgg16         134,301,514   images (batch, 3, 224, 224)
 *   inception_v3   24,353,332   images (batch, 3, 299, 299); batch normalisation, auxiliary classifier
 *   lstm            9,417,704   images (batch, 80, 1024): hidden 1,024, 1,000 classes
 *   gru             7,319,528   the same
 *
 * and smaller ones: mlp (784-256-128-10), convnet, convnet_small, convnet_bn (images (batch, 1, 28, 28)),
 * lstm_small, gru_small (images (batch, 28, 28)), charlm (a language model of bytes: tokens, targets (batch,
 * 64)), transformer (the same), seq2seq (source, tokens, targets (batch, 32)).
 *
 * Classifiers have the ports images f32, labels (batch) i32, loss () f32, correct () i32, probs (batch,
 * classes) f32. Models of sequences of tokens have the inputs tokens and targets i32 (targets below 0 are
 * passed over; seq2seq: source as well, padded with 0 at its start), loss, correct, and probs with a row per
 * token (charlm: the steps first). steps changes the length of sequences, and with it the features of a row.
 * TERN_E_NOT_FOUND lists the models there are; TERN_E_INVALID: a model is not made for such sizes.
 */
tern_status tern_graph_model(const char *model, const tern_model_params *params, tern_graph **graph);
/* The same with hidden layers of the given widths. n_widths 0 is a linear classifier. */
tern_status tern_graph_fully_connected(const char *name, const uint64_t *widths, uint32_t n_widths,
				       const tern_model_params *params, tern_graph **graph);

/* ---- import ------------------------------------------------------------------------------------ */

/* The size of a symbolic dim. */
typedef struct tern_size {
	const char *name;
	uint64_t size;
} tern_size;

/* A tensor outside of a graph: dense, row-major. */
typedef struct tern_array {
	const char *name;
	tern_dtype dtype;
	tern_shape shape;
	const void *data;
} tern_array;

/* Zero it, then set what differs. */
typedef struct tern_onnx_params {
	const tern_size
		*sizes; /* of dims that the file leaves symbolic: known from the start, so that more folds */
	uint32_t n_sizes;
	/*
	 * Values of inputs. Where an op needs a value when the graph is made (Reshape its shape, Pad its pads),
	 * it is taken from here and the input becomes no port; inputs that are only computed with stay inputs.
	 */
	const tern_array *values;
	uint32_t n_values;
	int bind;   /* 1: dims that the file leaves symbolic have the sizes that the values have */
	int frozen; /* 1: float initialisers become constants rather than variables */
	/* Called with one line for each node that cannot be imported; may be NULL. */
	void (*report)(void *arg, const char *line);
	void *report_arg;
} tern_onnx_params;

/*
 * The graph of an ONNX model, opset 9 to 17: a file, or bytes in memory. Inputs and outputs become ports of
 * their names; dims that the file names (dim_param) or leaves open become symbolic; float initialisers become
 * variables that start with the file's values, others constants; what is constant is folded. params may be
 * NULL; nothing of it is kept. Nothing in the file is trusted. TERN_E_UNSUPPORTED: ops, types or versions that
 * tern does not have: the text lists nodes, report gets all of them; TERN_E_CORRUPT: no such file format;
 * TERN_E_TOO_LARGE, TERN_E_SHAPE, TERN_E_INVALID, TERN_E_NOT_FOUND (no file), TERN_E_IO, TERN_E_NOMEM.
 */
tern_status tern_graph_import_onnx(const char *path, const tern_onnx_params *params, tern_graph **graph);
tern_status tern_graph_import_onnx_bytes(const void *bytes, uint64_t n_bytes, const tern_onnx_params *params,
					 tern_graph **graph);

/*
 * Tensors in files: reads .npy and ONNX's TensorProto (by content), writes .npy. The array's data belongs to
 * the caller until tern_array_free; so does its name, which is NULL but for a TensorProto with one. TERN_E_NOT_FOUND, TERN_E_IO, TERN_E_CORRUPT,
 * TERN_E_UNSUPPORTED (a type that tern does not have, Fortran order), TERN_E_TOO_LARGE, TERN_E_NOMEM.
 */
tern_status tern_array_read(const char *path, tern_array *array);
tern_status tern_array_write(const char *path, const tern_array *array);
void tern_array_free(tern_array *array);

/* ---- programs ---------------------------------------------------------------------------------- */

/*
 * A graph that runs in the calling thread alone, without devices or a plan: inference, checks, small tools.
 * A program belongs to one thread at a time; different programs are independent, of one graph as well. It
 * copies the graph, whose weights it shares as long as no node writes them. Running allocates nothing.
 */
typedef struct tern_program tern_program;

/* Zero it, then set what differs. */
typedef struct tern_program_params {
	const tern_size *sizes; /* of the symbolic dims that are met on the way to the outputs */
	uint32_t n_sizes;
	uint32_t threads;           /* that one kernel may use; 0 = 1 */
	const char *const *outputs; /* ports; none: all. What they don't need is not run */
	uint32_t n_outputs;
	/*
	 * 0: as a trained model is used: BatchNormTrain that has running statistics (mean and var) normalises by them,
	 * Dropout lets everything through. 1: as in a training step, by the statistics of the batch.
	 */
	int training;
} tern_program_params;

/*
 * Allocates memory and prepares kernels. params may be NULL. TERN_E_NOT_FOUND: no such port or symbolic dim;
 * TERN_E_INVALID: a symbolic dim has no size; TERN_E_UNSUPPORTED: an op has no kernel for these types;
 * TERN_E_TOO_LARGE, TERN_E_NOMEM. The text names the node.
 */
tern_status tern_program_create(const tern_graph *graph, const tern_program_params *params,
				tern_program **program);
void tern_program_destroy(tern_program *program);
/* Copy into an input port; it keeps the data until it is fed again. TERN_E_NOT_FOUND, TERN_E_SHAPE (bytes). */
tern_status tern_program_feed(tern_program *program, const char *port, const void *data, uint64_t bytes);
/*
 * Give a variable another value: dense, of its type and shape. Any time between runs. TERN_E_NOT_FOUND: no variable of
 * that name that an output depends on; TERN_E_SHAPE (bytes), TERN_E_NOMEM.
 */
tern_status tern_program_set(tern_program *program, const char *variable, const void *data, uint64_t bytes);
/*
 * Give all variables the values of a checkpoint, running statistics with them: path is the folder of a step of
 * `tern train --save`, or a file of tern_session_save(). Variables that lie there in parts, of several servers, are put
 * together. Blocks on the disk. TERN_E_NOT_FOUND names a variable that is not there, TERN_E_SHAPE one of another type or
 * shape; TERN_E_CORRUPT, TERN_E_IO, TERN_E_NOMEM. After a failure some may have their new values.
 */
tern_status tern_program_restore(tern_program *program, const char *path);
/* Compute the outputs. What was never fed is zero. Fails as the first kernel that fails (TERN_E_INVALID). */
tern_status tern_program_run(tern_program *program);
/* Copy an output port's tensor of the latest run. TERN_E_NOT_FOUND, TERN_E_SHAPE (bytes). */
tern_status tern_program_fetch(tern_program *program, const char *port, void *data, uint64_t bytes);
/* Type and shape of a port with the sizes put in. TERN_E_NOT_FOUND. */
tern_status tern_program_port(const tern_program *program, const char *port, int is_input,
			      tern_value_info *info);
/* Bytes that the program allocated for tensors, and what they would be if no memory was reused. */
void tern_program_memory(const tern_program *program, uint64_t *bytes, uint64_t *without_reuse);

/* ---- plans ------------------------------------------------------------------------------------- */

typedef enum tern_optimizer_kind {
	TERN_OPTIMIZER_SGD,
	TERN_OPTIMIZER_MOMENTUM,
	TERN_OPTIMIZER_ADAGRAD,
	TERN_OPTIMIZER_ADAM,
	TERN_OPTIMIZER_RMSPROP,
} tern_optimizer_kind;

/*
 * With g' = g + weight_decay * w, where g is the gradient (sync: its mean over the workers) after clipping:
 *
 *   SGD       w -= lr_t g'
 *   MOMENTUM  v = momentum v + g';  w -= lr_t v
 *   ADAGRAD   a += g' g';  w -= lr_t g' / (sqrt(a) + epsilon)                       (Duchi et al. 2011)
 *   ADAM      m = beta1 m + (1 - beta1) g';  v = beta2 v + (1 - beta2) g' g';
 *             w -= lr_t / (1 - beta1^n) m / (sqrt(v / (1 - beta2^n)) + epsilon)     (Kingma and Ba 2015)
 *   RMSPROP   a = rho a + (1 - rho) g' g';  v = momentum v + g' / (sqrt(a) + epsilon);  w -= lr_t v
 *                                                                            (Tieleman and Hinton 2012)
 *
 * All state starts at 0; n counts the updates of a variable from 1 (async: those of all workers). lr_t falls
 * linearly from lr at step 0 to lr_end at step lr_steps and stays there; lr_steps 0: lr always.
 *
 * clip_value limits each element of g to [-clip_value, clip_value]. clip_norm scales g by
 * min(1, clip_norm / (|g| + 1e-6)), where |g| is the norm over all trained variables of the model, on
 * whichever servers they are: sync, of the mean over the workers (servers send their parts of the norm to
 * worker 0, which answers with the scale: every update waits for the last gradient); async, of the one
 * worker's gradient that is applied. Give one of them; 0: no clipping.
 */
typedef struct tern_optimizer {
	tern_optimizer_kind kind;
	float lr;
	float lr_end;
	uint64_t lr_steps;
	float momentum; /* [0, 1) */
	float weight_decay;
	float beta1;   /* [0, 1); 0 = 0.9 */
	float beta2;   /* [0, 1); 0 = 0.999 */
	float rho;     /* [0, 1); 0 = 0.9 */
	float epsilon; /* 0 = 1e-8 (ADAGRAD 1e-10) */
	float clip_value;
	float clip_norm;
} tern_optimizer;

/* How tensors travel between devices. */
typedef enum tern_comm {
	TERN_COMM_ZEROCOPY, /* from registered memory straight into the receiver's slot, one write each */
	TERN_COMM_COPY,     /* staged through a registered buffer on both sides */
	TERN_COMM_RPC,      /* serialised into a message of a general RPC and out of it */
	TERN_COMM_GRPC, /* by gRPC, for comparison: needs the module of tern's benches (option graph.grpc_module) */
	TERN_COMM_NONE, /* only the order of tensors, not their bytes: what a step costs without them */
} tern_comm;

/*
 * The switch TERN_RDMA_OPT in the environment: 0 makes zero-copy TERN_COMM_RPC, 1 makes every mode but
 * TERN_COMM_NONE zero-copy; unset: nothing. tern_plan_create applies it by itself. TERN_E_OPTION.
 */
tern_status tern_comm_switched(tern_comm *comm);
#define TERN_PLAN_DIMS_MAX 4

/* Zero it, then set what differs. */
typedef struct tern_plan_params {
	uint32_t servers; /* 0: one process trains alone (workers must be 1) */
	uint32_t workers;
	int sync; /* 1: gradients of all workers are averaged in worker order; 0: applied as they come */
	tern_comm comm;
	tern_optimizer optimizer;
	/* sync 0: how many steps a worker may be ahead of the slowest (stale synchronous); 0: any number */
	uint32_t stale;
	/*
	 * Model parallelism: the devices that a copy of the model is split over. Nodes that tern_graph_place or
	 * tern_graph_set_device gave a device stay there, the others go where a balanced minimum cut puts them.
	 * 0: as many as the graph's nodes name, 1 if they name none.
	 */
	uint32_t stages;
	/*
	 * A worker's rows go through its stages in so many pieces, one behind the other; gradients are added in
	 * their order. 0 = 1. What a graph computes over a whole batch (BatchNormTrain) is then over a piece.
	 */
	uint32_t micro_batches;
	uint64_t split_bytes; /* variables of more are split by rows over the servers; 0 = 4 MiB */
	/*
	 * Variables of so many bytes or more are treated as if marked by tern_graph_sparse, those that can be; 0 = none but
	 * the marked ones.
	 */
	uint64_t sparse_bytes;
	/*
	 * Sizes of symbolic dims, as far as they are known: only shapes with known and fixed sizes are static.
	 * varies: the size differs from step to step, and `size` is what to expect. A NULL name ends the list.
	 */
	struct {
		const char *name;
		uint64_t size;
		int varies;
	} dims[TERN_PLAN_DIMS_MAX];
} tern_plan_params;

#define TERN_PLAN_WORKERS_MAX 256u

/*
 * Plan the data-parallel training of a graph that has an output port "loss". Variables are spread over the
 * servers by bytes; the plan is a pure function of graph and params, so every process of a job makes the
 * same one by itself. The graph is copied. TERN_E_INVALID: no worker, no port
 * "loss"; the text says which and what to change.
 */
tern_status tern_plan_create(const tern_graph *graph, const tern_plan_params *params, tern_plan **plan);
void tern_plan_destroy(tern_plan *plan);

typedef enum tern_role { TERN_ROLE_SERVER, TERN_ROLE_WORKER, TERN_ROLE_LOCAL } tern_role;

typedef struct tern_device_info {
	const char *name; /* "server0", "worker3"; lives as long as the plan */
	tern_role role;
	uint32_t index; /* within the role */
	uint32_t stage; /* of a worker that is split over several devices */
	uint32_t nodes;
	uint32_t variables;
	uint64_t variable_bytes; /* without optimiser state */
	uint32_t edges_out, edges_in;
	uint64_t bytes_out, bytes_in; /* per step */
	/*
	 * Tensors that live for a part of a step only share buffers: how many tensors, the bytes that they would
	 * take each by itself, how many buffers and their bytes; with the sizes of tern_plan_params.dims, or
	 * guesses.
	 */
	uint32_t shared, buffers;
	uint64_t shared_bytes, buffer_bytes;
} tern_device_info;

typedef struct tern_edge_info {
	const char *name;  /* the tensor's; lives as long as the plan */
	uint32_t src, dst; /* device numbers */
	tern_dtype dtype;
	tern_shape shape;
	uint64_t bytes; /* per step; of a dynamic edge what is expected, 0 if nothing is known */
	int is_static;
	const char *reason; /* why static or dynamic */
	const char *op;     /* "RdmaSend/RdmaRecv", "RdmaSendDynamic/RdmaRecvDynamic" or "Send/Recv" */
	const char *site;   /* where the sent tensor's memory is allocated, through views and in-place ops */
	uint32_t copies;    /* in memory of the two hosts, beyond the one write of the transport */
	const char *copy_reason; /* "" without copies */
} tern_edge_info;

/* How many devices a plan has, and edges between them; they are numbered from 0. */
uint32_t tern_plan_devices(const tern_plan *plan);
uint32_t tern_plan_edges(const tern_plan *plan);
/* TERN_E_NOT_FOUND past the last one. */
tern_status tern_plan_device(const tern_plan *plan, uint32_t device, tern_device_info *info);
tern_status tern_plan_edge(const tern_plan *plan, uint32_t edge, tern_edge_info *info);
/* The number of the device with this role and index. TERN_E_NOT_FOUND names those that there are. */
tern_status tern_plan_find(const tern_plan *plan, tern_role role, uint32_t index, uint32_t *device);

/* The plan for people, or as one JSON object. Free with tern_graph_text_free. NULL if memory is out. */
char *tern_plan_text(const tern_plan *plan);
char *tern_plan_json(const tern_plan *plan);

#ifdef __cplusplus
}
#endif

#endif
