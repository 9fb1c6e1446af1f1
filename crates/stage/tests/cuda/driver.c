/* A stand-in for the CUDA driver library, for machines without one: two devices made of host memory, with a thread per
 * stream. It has the functions that the engine calls, by the names and types of cuda.h (CUDA 13), and refuses what the
 * driver's documentation forbids: calls without the device's context, calls out of a host function, copies from or to
 * memory that is neither pinned nor the device's. What lives is counted. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult;
enum { SUCCESS = 0, INVALID_VALUE = 1, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_READY = 600,
       NOT_PERMITTED = 800, UNKNOWN = 999 };

struct context { int device; };
struct range { uintptr_t start; size_t size; int device; struct range *next; };
struct event { uint64_t recorded, reached; };
struct work { enum { COPY, MARK, CALL, END } kind; void *to; const void *from; size_t size; struct event *event; uint64_t number;
              void (*call)(void *); void *argument; struct work *next; };
struct stream { struct context *context; pthread_t thread; struct work *first, **last; uint64_t begun, over; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct context contexts[2] = {{0}, {1}};
static struct range *pinned, *memory;
static int initialised, retained, streams, events, stopped, records_to_fail, copies_to_fail;
static __thread struct context *stack[16];
static __thread int depth, calling;

static struct context *current(void) { return depth ? stack[depth - 1] : NULL; }

/* What every call on a context asks first. */
#define ENTER \
    if (calling) return NOT_PERMITTED; \
    if (!initialised || !current()) return INVALID_CONTEXT

static struct range *find(struct range *list, uintptr_t at, size_t size) {
    for (; list; list = list->next)
        if (at >= list->start && at - list->start <= list->size && size <= list->size - (at - list->start)) return list;
    return NULL;
}

static CUresult take(struct range **list, size_t size, int device, uintptr_t *start) {
    if (!size) return INVALID_VALUE;
    struct range *range = malloc(sizeof *range);
    *range = (struct range){(uintptr_t)malloc(size), size, device, NULL};
    memset((void *)range->start, 0xcd, size);
    pthread_mutex_lock(&lock);
    range->next = *list;
    *list = range;
    pthread_mutex_unlock(&lock);
    *start = range->start;
    return SUCCESS;
}

static CUresult give_back(struct range **list, uintptr_t start) {
    pthread_mutex_lock(&lock);
    while (*list && (*list)->start != start) list = &(*list)->next;
    struct range *range = *list;
    if (range) *list = range->next;
    pthread_mutex_unlock(&lock);
    if (!range) return INVALID_VALUE;
    free((void *)range->start);
    free(range);
    return SUCCESS;
}

static void *run(void *argument) {
    struct stream *stream = argument;
    for (;;) {
        pthread_mutex_lock(&lock);
        while (!stream->first || (stopped && stream->first->kind != END)) pthread_cond_wait(&changed, &lock);
        struct work *work = stream->first;
        if (!(stream->first = work->next)) stream->last = &stream->first;
        pthread_mutex_unlock(&lock);
        int end = work->kind == END;
        if (work->kind == COPY) memcpy(work->to, work->from, work->size);
        if (work->kind == CALL) {
            calling = 1;
            work->call(work->argument);
            calling = 0;
        }
        pthread_mutex_lock(&lock);
        if (work->kind == MARK && work->event->reached < work->number) work->event->reached = work->number;
        stream->over++;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
        free(work);
        if (end) break;
    }
    free(stream);
    return NULL;
}

static CUresult begin(struct stream *stream, struct work work) {
    if (stream->context != current()) return INVALID_HANDLE;
    struct work *own = malloc(sizeof *own);
    *own = work;
    own->next = NULL;
    pthread_mutex_lock(&lock);
    *stream->last = own;
    stream->last = &own->next;
    stream->begun++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

static CUresult copy(void *to, const void *from, uintptr_t device, uintptr_t host, size_t size, struct stream *stream) {
    pthread_mutex_lock(&lock);
    struct range *there = find(memory, device, size);
    int known = there && current() && there->device == current()->device && find(pinned, host, size);
    int fails = copies_to_fail && !--copies_to_fail;
    pthread_mutex_unlock(&lock);
    if (!known) return INVALID_VALUE;
    return fails ? UNKNOWN : begin(stream, (struct work){.kind = COPY, .to = to, .from = from, .size = size});
}

CUresult cuInit(unsigned flags) { return flags ? INVALID_VALUE : (initialised = 1, SUCCESS); }
CUresult cuGetErrorName(CUresult error, const char **text) { return *text = error == UNKNOWN ? "UNKNOWN" : "REFUSED", SUCCESS; }
CUresult cuGetErrorString(CUresult error, const char **text) { return cuGetErrorName(error, text); }
CUresult cuDeviceGetCount(int *count) { return *count = 2, initialised ? SUCCESS : INVALID_CONTEXT; }
CUresult cuDeviceGet(int *device, int ordinal) { return ordinal < 0 || ordinal > 1 ? INVALID_DEVICE : (*device = ordinal, SUCCESS); }

CUresult cuDevicePrimaryCtxRetain(struct context **context, int device) {
    if (device < 0 || device > 1) return INVALID_DEVICE;
    *context = &contexts[device];
    return __atomic_add_fetch(&retained, 1, __ATOMIC_SEQ_CST), SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(int device) {
    return device < 0 || device > 1 ? INVALID_DEVICE : (__atomic_sub_fetch(&retained, 1, __ATOMIC_SEQ_CST), SUCCESS);
}

CUresult cuCtxPushCurrent_v2(struct context *context) {
    if (calling) return NOT_PERMITTED;
    if (!context || depth == 16) return INVALID_CONTEXT;
    return stack[depth++] = context, SUCCESS;
}

CUresult cuCtxPopCurrent_v2(struct context **context) {
    ENTER;
    return *context = stack[--depth], SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, int which, uintptr_t at) {
    ENTER;
    pthread_mutex_lock(&lock);
    struct range *device = find(memory, at, 1), *host = find(pinned, at, 1), *range = device ? device : host;
    pthread_mutex_unlock(&lock);
    if (!range) return INVALID_VALUE;
    switch (which) {
    case 2: *(unsigned *)data = device ? 2 : 1; return SUCCESS;
    case 9: *(int *)data = range->device; return SUCCESS;
    case 11: *(uintptr_t *)data = range->start; return SUCCESS;
    case 12: *(size_t *)data = range->size; return SUCCESS;
    default: return INVALID_VALUE;
    }
}

CUresult cuMemAlloc_v2(uintptr_t *at, size_t size) { ENTER; return take(&memory, size, current()->device, at); }
CUresult cuMemFree_v2(uintptr_t at) { ENTER; return give_back(&memory, at); }
CUresult cuMemHostAlloc(void **at, size_t size, unsigned flags) {
    ENTER;
    return flags & ~7u ? INVALID_VALUE : take(&pinned, size, current()->device, (uintptr_t *)at);
}
CUresult cuMemFreeHost(void *at) { ENTER; return give_back(&pinned, (uintptr_t)at); }

CUresult cuMemcpyDtoHAsync_v2(void *to, uintptr_t from, size_t size, struct stream *stream) {
    ENTER;
    return copy(to, (void *)from, from, (uintptr_t)to, size, stream);
}

CUresult cuMemcpyHtoDAsync_v2(uintptr_t to, const void *from, size_t size, struct stream *stream) {
    ENTER;
    return copy((void *)to, from, to, (uintptr_t)from, size, stream);
}

CUresult cuStreamCreate(struct stream **stream, unsigned flags) {
    ENTER;
    if (flags > 1) return INVALID_VALUE;
    *stream = calloc(1, sizeof **stream);
    (*stream)->context = current();
    (*stream)->last = &(*stream)->first;
    pthread_create(&(*stream)->thread, NULL, run, *stream);
    return __atomic_add_fetch(&streams, 1, __ATOMIC_SEQ_CST), SUCCESS;
}

CUresult cuStreamDestroy_v2(struct stream *stream) {
    ENTER;
    pthread_detach(stream->thread);
    __atomic_sub_fetch(&streams, 1, __ATOMIC_SEQ_CST);
    return begin(stream, (struct work){.kind = END});
}

CUresult cuStreamSynchronize(struct stream *stream) {
    ENTER;
    pthread_mutex_lock(&lock);
    uint64_t begun = stream->begun;
    while (stream->over < begun) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

CUresult cuEventCreate(struct event **event, unsigned flags) {
    ENTER;
    if (flags & ~7u) return INVALID_VALUE;
    *event = calloc(1, sizeof **event);
    return __atomic_add_fetch(&events, 1, __ATOMIC_SEQ_CST), SUCCESS;
}

CUresult cuEventRecord(struct event *event, struct stream *stream) {
    ENTER;
    pthread_mutex_lock(&lock);
    int fails = records_to_fail && !--records_to_fail;
    uint64_t number = fails ? 0 : ++event->recorded;
    pthread_mutex_unlock(&lock);
    return fails ? UNKNOWN : begin(stream, (struct work){.kind = MARK, .event = event, .number = number});
}

CUresult cuEventQuery(struct event *event) {
    ENTER;
    pthread_mutex_lock(&lock);
    int over = event->reached == event->recorded;
    pthread_mutex_unlock(&lock);
    return over ? SUCCESS : NOT_READY;
}

CUresult cuEventDestroy_v2(struct event *event) {
    ENTER;
    free(event);
    return __atomic_sub_fetch(&events, 1, __ATOMIC_SEQ_CST), SUCCESS;
}

CUresult cuLaunchHostFunc(struct stream *stream, void (*call)(void *), void *argument) {
    ENTER;
    return begin(stream, (struct work){.kind = CALL, .call = call, .argument = argument});
}

/* What the tests ask and set. */
int stand_in_current(void) { return current() ? current()->device : -1; }
void stand_in_stop(int stop) {
    pthread_mutex_lock(&lock);
    stopped = stop;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}
void stand_in_fail_copy(int number) { copies_to_fail = number; }
void stand_in_fail_record(int number) { records_to_fail = number; }
int stand_in_lives(void) {
    int lives = retained + streams + events;
    pthread_mutex_lock(&lock);
    for (struct range *range = pinned; range; range = range->next) lives++;
    for (struct range *range = memory; range; range = range->next) lives++;
    pthread_mutex_unlock(&lock);
    return lives;
}
