/* A test double of the Edge TPU runtime library: libedgetpu.so.1 or edgetpu.dll, for machines without an Edge TPU.
 *
 * A TensorFlow Lite runtime loads it as the real one, through load_delegate. It claims the nodes named
 * edgetpu-custom-op and gives right results for files made by fake_compilers.py: the original network travels inside
 * the compiled one, and the Python that loaded this library runs it.
 *
 * At every call it reads its behaviour from the file that the environment variable FIELDRAY_FAKE_EDGETPU names, in lines
 * KEY=VALUE:
 *   edgetpu=ready|uninitialised|absent|held  uninitialised: without its firmware; held: used by another program
 *   path=TEXT                     its path in the list of devices
 *   runtime=N                     the runtime version it claims and obeys (14)
 *   open=ok|fail|hang|abort       what happens when it is opened
 *   invoke=ok|fail|hang|abort     what happens when it runs, once `after` images went well (0)
 *   pull=abort|fail|hang          what happens when it runs and the Edge TPU is absent; the real library aborts
 *   open_ms=N firmware_ms=N invoke_ms=N   how long things take; firmware_ms only for an uninitialised one
 *   abi=current|stale             stale: as built for a TensorFlow of 2021
 *   mark=1                        flip the lowest bit of the second output, to tell its results from the CPU's
 * One process at a time can open it, as with the real one: it locks FAKE_EDGETPU.claim.
 *
 * The structures below are the part of TensorFlow Lite's C interface that a delegate needs (tflite/core/c/common.h
 * and delegates/external/external_delegate_interface.h), in their 64-bit layout of 2024 to 2026.
 */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef _WIN32
#include <windows.h>
#define EXPORTED __declspec(dllexport)
#else
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>
#define EXPORTED __attribute__((visibility("default")))
#endif

enum { OK = 0, FAULT = 1, MOST_TENSORS = 16 };

/* ---- TensorFlow Lite */

typedef struct { int size; int data[]; } IntArray;

typedef struct {
  int type;
  void *data;
  IntArray *dims;
  struct { float scale; int32_t zero_point; } params;
  int allocation_type;
  size_t bytes;
  const void *allocation;
  const char *name;
  void *delegate;
  int buffer_handle;
  bool data_is_stale, is_variable;
  struct { int type; void *params; } quantization;
  void *sparsity;
  const IntArray *dims_signature;
} Tensor;
_Static_assert(sizeof(Tensor) == 112, "the runtime's tensors are an array of these");

typedef struct {
  IntArray *inputs, *outputs, *intermediates, *temporaries;
  void *user_data, *builtin_data;
  const void *custom_initial_data;
  int custom_initial_data_size;
} Node; /* the runtime's has more behind */

typedef struct Context Context;

typedef struct {
  void *(*init)(Context *, const char *, size_t);
  void (*free)(Context *, void *);
  int (*prepare)(Context *, Node *);
  int (*invoke)(Context *, Node *);
  const char *(*profiling_string)(const Context *, const Node *);
  int32_t builtin_code;
  const char *custom_name;
  int version;
  /* what follows came after 2021 */
  const void *registration_external;
  const void *async_kernel;
  uint64_t inplace_operator;
} Registration;
_Static_assert(sizeof(Registration) == 88, "it is passed by value");

struct Context {
  size_t tensors_size;
  int (*GetExecutionPlan)(Context *, IntArray **);
  Tensor *tensors;
  void *implementation;
  int (*ResizeTensor)(Context *, Tensor *, IntArray *);
  void (*ReportError)(Context *, const char *, ...);
  int (*AddTensors)(Context *, int, int *);
  int (*GetNodeAndRegistration)(Context *, int, Node **, Registration **);
  int (*ReplaceNodeSubsetsWithDelegateKernels)(Context *, Registration, const IntArray *, void *);
};

typedef struct Delegate {
  void *data;
  int (*Prepare)(Context *, struct Delegate *);
  void *copy_from, *copy_to, *free_handle;
  int64_t flags;
  void *opaque_builder;
} Delegate;

typedef struct { Delegate *delegate; IntArray *nodes_to_replace, *inputs, *outputs; } Partition;

/* ---- orders from the control file */

typedef struct {
  char edgetpu[16], open[16], invoke[16], pull[16], abi[16], path[256];
  int runtime, after, open_ms, firmware_ms, invoke_ms, mark;
} Orders;

static void take(Orders *orders, const char *key, const char *value) {
  const struct { const char *key; char *text; size_t size; } texts[] = {
      {"edgetpu", orders->edgetpu, sizeof orders->edgetpu},    {"open", orders->open, sizeof orders->open},
      {"invoke", orders->invoke, sizeof orders->invoke}, {"pull", orders->pull, sizeof orders->pull},
      {"abi", orders->abi, sizeof orders->abi},          {"path", orders->path, sizeof orders->path}};
  const struct { const char *key; int *number; } numbers[] = {{"runtime", &orders->runtime},
                                                              {"after", &orders->after},
                                                              {"open_ms", &orders->open_ms},
                                                              {"firmware_ms", &orders->firmware_ms},
                                                              {"invoke_ms", &orders->invoke_ms},
                                                              {"mark", &orders->mark}};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    if (!strcmp(key, texts[i].key)) snprintf(texts[i].text, texts[i].size, "%s", value);
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
    if (!strcmp(key, numbers[i].key)) *numbers[i].number = atoi(value);
}

static Orders read_orders(void) {
  Orders orders = {.edgetpu = "ready", .open = "ok", .invoke = "ok", .pull = "abort", .abi = "current",
                   .path = "/sys/bus/usb/devices/2-1", .runtime = 14};
  const char *name = getenv("FIELDRAY_FAKE_EDGETPU");
  FILE *file = name ? fopen(name, "r") : NULL;
  char line[512];
  while (file && fgets(line, sizeof line, file)) {
    char *value = strchr(line, '=');
    if (!value) continue;
    *value++ = 0;
    value[strcspn(value, "\r\n")] = 0;
    take(&orders, line, value);
  }
  if (file) fclose(file);
  return orders;
}

static bool is(const char *text, const char *other) { return !strcmp(text, other); }

static void pause_ms(int duration_ms) {
#ifdef _WIN32
  Sleep((DWORD)duration_ms);
#else
  nanosleep(&(struct timespec){duration_ms / 1000, duration_ms % 1000 * 1000000L}, NULL);
#endif
}

/* Do as ordered: come back with OK or FAULT, or not at all. */
static int suffer(const char *fate) {
  while (is(fate, "hang")) pause_ms(1000);
  if (is(fate, "abort")) {
    fprintf(stderr, "F driver/usb/usb_driver.cc] transfer failed. Not found: USB transfer error 5\n");
    fflush(stderr);
    abort();
  }
  return is(fate, "fail") ? FAULT : OK;
}

/* ---- one process at a time */

#ifdef _WIN32
static HANDLE claim_handle = INVALID_HANDLE_VALUE;
static bool claim_device(const char *path) {
  HANDLE handle = CreateFileA(path, GENERIC_WRITE, 0, NULL, OPEN_ALWAYS, 0, NULL);
  if (handle == INVALID_HANDLE_VALUE) return false;
  claim_handle = handle;
  return true;
}
static void release_device(void) { CloseHandle(claim_handle); }
#else
static int claim_handle = -1;
static bool claim_device(const char *path) {
  int handle = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (handle < 0) return false;
  if (flock(handle, LOCK_EX | LOCK_NB)) {
    close(handle);
    return false;
  }
  claim_handle = handle;
  return true;
}
static void release_device(void) { close(claim_handle); }
#endif

/* ---- the library's own interface: edgetpu_c.h */

struct edgetpu_device { int type; const char *path; };
enum { USB = 1 };

EXPORTED struct edgetpu_device *edgetpu_list_devices(size_t *count) {
  Orders orders = read_orders();
  *count = !is(orders.edgetpu, "absent");
  if (!*count) return NULL;
  struct edgetpu_device *list = malloc(sizeof *list + sizeof orders.path);
  list->type = USB;
  list->path = memcpy(list + 1, orders.path, sizeof orders.path);
  return list;
}

EXPORTED void edgetpu_free_devices(struct edgetpu_device *list) { free(list); }

EXPORTED const char *edgetpu_version(void) {
  static char text[96];
  snprintf(text, sizeof text, "BuildLabel(COMPILER=test double,DATE=none,TIME=none), RuntimeVersion(%d)",
           read_orders().runtime);
  return text;
}

EXPORTED void edgetpu_verbosity(int level) { (void)level; }

/* ---- a compiled file's package, written by fake_compilers.py: a flatbuffer table with
 *      field 0 = oldest runtime version, field 5 = the original network's bytes */

typedef struct { const uint8_t *model; uint32_t size; int32_t oldest_runtime; } Package;

static uint32_t word(const uint8_t *at) { uint32_t value; memcpy(&value, at, 4); return value; }
static uint16_t half(const uint8_t *at) { uint16_t value; memcpy(&value, at, 2); return value; }

static bool read_package(const uint8_t *blob, int size, Package *package) {
  if (size < 8 || memcmp(blob + 4, "DWN1", 4)) return false;
  const uint8_t *table = blob + word(blob), *fields = table - (int32_t)word(table);
  if (half(fields) < 16 || !half(fields + 14)) return false;
  const uint8_t *vector = table + half(fields + 14);
  vector += word(vector);
  package->oldest_runtime = half(fields + 4) ? (int32_t)word(table + half(fields + 4)) : 0;
  package->size = word(vector);
  package->model = vector + 4;
  return package->model + package->size <= blob + size;
}

/* ---- running the original network in the Python that loaded this library */

typedef struct {
  size_t serial; /* tells networks opened one after another apart */
  size_t model, model_size, inputs, outputs;
  struct { size_t data, bytes; } tensors[MOST_TENSORS]; /* the inputs, then the outputs */
} Job;

static const char RUNNER[] =
    "def _fake_edgetpu_run(address, opened={}):\n"
    "    import ctypes, sys\n"
    "    serial, model, size, inputs, outputs = (ctypes.c_size_t * 5).from_address(address)\n"
    "    pairs = (ctypes.c_size_t * (2 * (inputs + outputs))).from_address(address + 40)\n"
    "    tensors = [(ctypes.c_uint8 * pairs[i + 1]).from_address(pairs[i]) for i in range(0, len(pairs), 2)]\n"
    "    if serial not in opened:\n"
    "        names = ('ai_edge_litert.interpreter', 'tflite_runtime.interpreter')\n"
    "        runtime = next(sys.modules[name] for name in names if name in sys.modules)\n"
    "        opened.clear()\n"
    "        opened[serial] = runtime.Interpreter(model_content=ctypes.string_at(model, size), num_threads=1)\n"
    "        opened[serial].allocate_tensors()\n"
    "    network = opened[serial]\n"
    "    for details, memory in zip(network.get_input_details(), tensors):\n"
    "        network.tensor(details['index'])().reshape(-1).view('uint8')[:] = memory\n"
    "    network.invoke()\n"
    "    for details, memory in zip(network.get_output_details(), tensors[inputs:]):\n"
    "        memory[:] = network.get_tensor(details['index']).tobytes()\n";

static void *python(const char *name) {
#ifdef _WIN32
  char library[32];
  for (int minor = 9; minor < 20; minor++) {
    snprintf(library, sizeof library, "python3%d.dll", minor);
    HMODULE module = GetModuleHandleA(library);
    if (module) return (void *)GetProcAddress(module, name);
  }
  return NULL;
#else
  return dlsym(RTLD_DEFAULT, name);
#endif
}

static int run_in_python(const Job *job) {
  int (*lock)(void) = (int (*)(void))python("PyGILState_Ensure");
  void (*unlock)(int) = (void (*)(int))python("PyGILState_Release");
  int (*run)(const char *) = (int (*)(const char *))python("PyRun_SimpleString");
  static bool is_defined;
  char call[64];
  if (!lock || !unlock || !run) return FAULT;
  snprintf(call, sizeof call, "_fake_edgetpu_run(%llu)", (unsigned long long)(uintptr_t)job);
  int state = lock();
  int result = is_defined ? OK : run(RUNNER);
  is_defined = true;
  if (!result) result = run(call);
  unlock(state);
  return result ? FAULT : OK;
}

/* ---- the kernel that stands for edgetpu-custom-op */

typedef struct {
  size_t serial, images;
  Package package;
  bool is_readable;
  int input_count, output_count, tensors[MOST_TENSORS]; /* in the original node's order */
} Kernel;

static void *kernel_init(Context *context, const char *buffer, size_t size) {
  static size_t serials;
  const Partition *partition = (const Partition *)buffer;
  Kernel *kernel = calloc(1, sizeof *kernel);
  Node *node;
  Registration *registration;
  (void)size;
  kernel->serial = ++serials;
  if (context->GetNodeAndRegistration(context, partition->nodes_to_replace->data[0], &node, &registration)) return kernel;
  int inputs = node->inputs->size, outputs = node->outputs->size;
  if (inputs + outputs > MOST_TENSORS) return kernel;
  kernel->is_readable = read_package(node->custom_initial_data, node->custom_initial_data_size, &kernel->package);
  kernel->input_count = inputs;
  kernel->output_count = outputs;
  memcpy(kernel->tensors, node->inputs->data, sizeof(int) * (size_t)inputs);
  memcpy(kernel->tensors + inputs, node->outputs->data, sizeof(int) * (size_t)outputs);
  return kernel;
}

static void kernel_free(Context *context, void *kernel) {
  (void)context;
  free(kernel);
}

static int kernel_prepare(Context *context, Node *node) {
  const Kernel *kernel = node->user_data;
  int runtime = read_orders().runtime;
  if (!kernel->is_readable) {
    context->ReportError(context, "The test double runs only files made by fake_compilers.py");
    return FAULT;
  }
  if (kernel->package.oldest_runtime > runtime) {
    context->ReportError(context, "Package requires runtime version (%d), which is newer than this runtime version (%d).",
                         kernel->package.oldest_runtime, runtime);
    return FAULT;
  }
  return OK;
}

static int fate_of_image(const Kernel *kernel) {
  Orders orders = read_orders();
  if (orders.invoke_ms) {
    pause_ms(orders.invoke_ms);
    orders = read_orders(); /* it may have been unplugged meanwhile */
  }
  if (is(orders.edgetpu, "absent") || is(orders.edgetpu, "uninitialised")) return suffer(orders.pull);
  return kernel->images >= (size_t)orders.after ? suffer(orders.invoke) : OK;
}

static int kernel_invoke(Context *context, Node *node) {
  Kernel *kernel = node->user_data;
  if (fate_of_image(kernel)) {
    context->ReportError(context, "Failed to execute request. USB transfer error 5");
    return FAULT;
  }
  Job job = {kernel->serial, (size_t)kernel->package.model, kernel->package.size, (size_t)kernel->input_count,
             (size_t)kernel->output_count, {{0}}};
  for (int i = 0; i < kernel->input_count + kernel->output_count; i++) {
    const Tensor *tensor = &context->tensors[kernel->tensors[i]];
    job.tensors[i].data = (size_t)tensor->data;
    job.tensors[i].bytes = tensor->bytes;
  }
  if (run_in_python(&job)) {
    context->ReportError(context, "The original network cannot be run");
    return FAULT;
  }
  if (read_orders().mark) *(uint8_t *)job.tensors[kernel->input_count + 1].data ^= 1;
  kernel->images++;
  return OK;
}

/* ---- the delegate */

static Registration kernel_registration(void) {
  Registration registration = {.init = kernel_init, .free = kernel_free, .prepare = kernel_prepare,
                               .invoke = kernel_invoke, .custom_name = "EdgeTpuDelegateForCustomOp", .version = 1};
  if (is(read_orders().abi, "stale")) {
    /* The old structure ended before these: the runtime finds there whatever the caller's stack held. */
    const void *stack_leftover = (const void *)(uintptr_t)0x10;
    registration.registration_external = registration.async_kernel = stack_leftover;
    registration.inplace_operator = UINT64_MAX;
  }
  return registration;
}

static int delegate_prepare(Context *context, Delegate *delegate) {
  IntArray *plan;
  Node *node;
  Registration *found;
  if (context->GetExecutionPlan(context, &plan)) return FAULT;
  /* The plan changes with every replacement: collect first. */
  IntArray *claimed = malloc(sizeof *claimed + sizeof(int) * (size_t)plan->size);
  claimed->size = 0;
  for (int i = 0; i < plan->size; i++) {
    bool is_known = !context->GetNodeAndRegistration(context, plan->data[i], &node, &found);
    if (is_known && found->custom_name && is(found->custom_name, "edgetpu-custom-op"))
      claimed->data[claimed->size++] = plan->data[i];
  }
  int result = OK;
  if (claimed->size)
    result = context->ReplaceNodeSubsetsWithDelegateKernels(context, kernel_registration(), claimed, delegate);
  free(claimed);
  return result;
}

/* Only one Edge TPU is ever there. `device` is "", ":0", "usb" or "usb:0" for it. */
static bool names_this_device(const char *device) {
  if (!strncmp(device, "usb", 3)) device += 3;
  return !*device || is(device, ":0");
}

EXPORTED Delegate *tflite_plugin_create_delegate(char **keys, char **values, size_t count, void (*report)(const char *)) {
  char claim[512];
  Orders orders = read_orders();
  const char *control = getenv("FIELDRAY_FAKE_EDGETPU");
  (void)report; /* the real library says nothing either */
  for (size_t i = 0; i < (count & 0xffff); i++) /* the caller passes an int */
    if (is(keys[i], "device") && !names_this_device(values[i])) return NULL;
  if (is(orders.edgetpu, "absent") || is(orders.edgetpu, "held")) return NULL;
  snprintf(claim, sizeof claim, "%s.claim", control ? control : "fake_edgetpu");
  if (!claim_device(claim)) return NULL;
  pause_ms(orders.open_ms + (is(orders.edgetpu, "uninitialised") ? orders.firmware_ms : 0));
  orders = read_orders(); /* it may have been unplugged meanwhile */
  if (suffer(orders.open) || is(orders.edgetpu, "absent")) {
    release_device();
    return NULL;
  }
  Delegate *delegate = calloc(1, sizeof *delegate);
  delegate->Prepare = delegate_prepare;
  delegate->flags = 1; /* allow dynamic tensors, as the real one */
  return delegate;
}

EXPORTED void tflite_plugin_destroy_delegate(Delegate *delegate) {
  if (!delegate) return;
  release_device();
  free(delegate);
}
