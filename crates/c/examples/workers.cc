// The worker pool and completions, from C++.
#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include "common.h"

namespace {

struct Sums {
    const std::vector<uint32_t> &numbers;
    std::atomic<uint64_t> total{0};
};

void add(void *context, size_t begin, size_t end) {
    auto &sums = *static_cast<Sums *>(context);
    uint64_t part = 0;
    for (size_t index = begin; index < end; index++) part += sums.numbers[index];
    sums.total += part;
}

void end_part(void *context) { sw_completion_end(static_cast<sw_completion *>(context), SW_OK); }

}  // namespace

int main() {
    sw_pool *pool;
    MUST(sw_pool_start(2, &pool));
    HOLDS(sw_pool_threads(pool) == 2);

    std::vector<uint32_t> numbers(100000);
    std::iota(numbers.begin(), numbers.end(), 1);
    Sums sums{numbers};
    MUST(sw_pool_run(pool, numbers.size(), add, &sums));
    HOLDS(sums.total == uint64_t{100000} * 100001 / 2);
    HOLDS(sw_pool_run(pool, 1, nullptr, nullptr) == SW_INVALID);

    // Tasks in the background say when they are over; a thread that waits stands still.
    sw_completion *completion;
    MUST(sw_completion_new(8, &completion));
    sw_completion *told;
    MUST(sw_completion_new(1, &told));
    MUST(sw_completion_on_end(completion, end_part, told));
    HOLDS(sw_completion_on_end(completion, end_part, told) == SW_INVALID);
    for (int part = 0; part < 7; part++) MUST(sw_pool_submit(pool, end_part, completion, nullptr));
    sw_task *task;
    MUST(sw_pool_submit(pool, end_part, completion, &task));
    MUST(sw_task_wait(task, SW_FOREVER));
    MUST(sw_task_wait(task, 0));
    sw_task_free(task);
    MUST(sw_completion_wait(completion, 10 * SECOND));
    HOLDS(sw_completion_is_done(completion));
    HOLDS(sw_completion_end(completion, SW_OK) == SW_INVALID);
    sw_completion_free(completion);
    MUST(sw_completion_wait(told, 10 * SECOND));
    sw_completion_free(told);

    // A thread that may be late has a handle of its own: the other may be given back although its part is not over.
    sw_completion *theirs;
    MUST(sw_completion_new(1, &completion));
    MUST(sw_completion_share(completion, &theirs));
    HOLDS(sw_completion_wait(completion, 1000000) == SW_TIMED_OUT);
    std::thread other([theirs] {
        sw_completion_end(theirs, -77);
        sw_completion_free(theirs);
    });
    HOLDS(sw_completion_wait(completion, SW_FOREVER) == -77);
    sw_completion_free(completion);
    other.join();

    MUST(sw_completion_new(1, &completion));
    sw_completion_cancel(completion);
    HOLDS(sw_completion_wait(completion, SW_FOREVER) == SW_CANCELLED);
    sw_completion_free(completion);

    // A task that the pool had not begun is not done after its stop, and its outcome stays.
    HOLDS(sw_pool_threads(pool) == 2);
    std::atomic<int> ran{0};
    auto count = [](void *context) { ++*static_cast<std::atomic<int> *>(context); };
    sw_task *tasks[64];
    for (auto &one : tasks) MUST(sw_pool_submit(pool, count, &ran, &one));
    sw_pool_stop(pool);
    int done = 0;
    for (auto *one : tasks) {
        sw_status ended = sw_task_wait(one, SW_FOREVER);
        HOLDS(ended == SW_OK || ended == SW_CANCELLED);
        HOLDS(sw_task_wait(one, 0) == ended);
        done += ended == SW_OK;
        sw_task_free(one);
    }
    HOLDS(ran == done);
    printf("%zu numbers added\n", numbers.size());
    return 0;
}
