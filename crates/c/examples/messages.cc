// Commands and requests between two message layers, from C++.
#include <atomic>
#include <string>

#include "common.h"

namespace {

std::string text(sw_bytes bytes) { return {static_cast<const char *>(bytes.data), bytes.bytes}; }

// Answers with its parts in reverse order.
void reverse(void *, const sw_call *call) {
    sw_bytes parts[2] = {sw_call_part(call, 1), sw_call_part(call, 0)};
    if (sw_call_count(call) == 2)
        sw_call_reply(call, 2, parts);
    else
        sw_call_fail(call);
}

// Lets the answer wait.
void later(void *context, const sw_call *call) {
    sw_call_defer(call, static_cast<sw_deferred **>(context));
    sw_call_send_back(call, "told.taken", 0, nullptr);
}

void taken(void *context, const sw_call *) { sw_completion_end(static_cast<sw_completion *>(context), SW_OK); }

struct Slow {
    sw_completion *begun, *never;
    std::atomic<sw_messages *> messages;
    sw_status stopped;
    std::atomic<bool> done;
};

// Takes its time, and may not stop what waits for it.
void slowly(void *context, const sw_call *) {
    auto *slow = static_cast<Slow *>(context);
    sw_completion_end(slow->begun, SW_OK);
    sw_completion_wait(slow->never, SECOND / 3);
    slow->stopped = sw_messages_stop(slow->messages);
    slow->done = true;
}

void dropped(void *, sw_status, sw_answer *answer) { sw_answer_free(answer); }

// Fails when the program has all but ended, and this thread with it.
struct Late {
    ~Late() {
        sw_client_put(nullptr, {}, {}, nullptr);
        sw_last_error();
    }
} late;

struct Waiting {
    sw_completion *completion;
    sw_answer *answer;
};

void answered(void *context, sw_status status, sw_answer *answer) {
    auto *waiting = static_cast<Waiting *>(context);
    waiting->answer = answer;
    sw_completion_end(waiting->completion, status);
}

}  // namespace

int main() {
    sw_deferred *deferred = nullptr;
    sw_messages_builder *builder;
    MUST(sw_messages_new(nullptr, &builder));
    MUST(sw_messages_category(builder, "words", SW_LEVEL_BASIC, 0));
    MUST(sw_messages_command(builder, "words.reverse", true, reverse, nullptr));
    MUST(sw_messages_command(builder, "words.later", true, later, &deferred));
    Slow slow{};
    MUST(sw_completion_new(1, &slow.begun));
    MUST(sw_completion_new(1, &slow.never));
    MUST(sw_messages_command(builder, "words.slow", true, slowly, &slow));
    HOLDS(sw_messages_command(builder, "words.later", true, later, nullptr) == SW_INVALID);
    HOLDS(sw_messages_category(builder, "a.b", SW_LEVEL_NONE, 0) == SW_INVALID);
    sw_messages *server;
    MUST(sw_messages_start(builder, &server));
    char address[128];
    size_t bytes;
    MUST(sw_messages_listen(server, "tcp://127.0.0.1:0", SW_LEVEL_BASIC, nullptr, {address, sizeof address - 1}, &bytes));
    address[bytes] = 0;
    HOLDS(sw_messages_listen(server, "tcp://127.0.0.1:0", SW_LEVEL_BASIC, nullptr, {address, 4}, &bytes) == SW_TOO_SMALL);
    HOLDS(bytes == std::string("tcp://127.0.0.1:65535").size());
    // Without keys, nobody beyond this machine is let in.
    char unused[128];
    HOLDS(sw_messages_listen(server, "tcp://0.0.0.0:0", SW_LEVEL_BASIC, nullptr, {unused, sizeof unused}, &bytes) ==
          SW_INVALID);

    sw_completion *told;
    MUST(sw_completion_new(1, &told));
    MUST(sw_messages_new(nullptr, &builder));
    MUST(sw_messages_category(builder, "told", SW_LEVEL_NONE, 0));
    MUST(sw_messages_command(builder, "told.taken", false, taken, told));
    sw_messages *client;
    MUST(sw_messages_start(builder, &client));
    sw_link *link;
    MUST(sw_messages_connect(client, address, SW_LEVEL_BASIC, 10 * SECOND, &link));

    sw_bytes parts[2] = {bytes_of("one"), bytes_of("two")};
    sw_answer *answer;
    MUST(sw_messages_request(client, link, "words.reverse", 2, parts, 0, &answer));
    HOLDS(sw_answer_count(answer) == 2 && text(sw_answer_part(answer, 0)) == "two");
    HOLDS(text(sw_answer_part(answer, 1)) == "one" && sw_answer_part(answer, 2).bytes == 0);
    sw_answer_free(answer);
    HOLDS(sw_messages_request(client, link, "words.reverse", 1, parts, 0, &answer) == SW_PEER_FAILED);
    HOLDS(sw_messages_request(client, link, "words.none", 0, nullptr, 0, &answer) < 0);

    Waiting waiting{};
    MUST(sw_completion_new(1, &waiting.completion));
    MUST(sw_messages_request_start(client, link, "words.later", 0, nullptr, 30 * SECOND, answered, &waiting));
    MUST(sw_completion_wait(told, 30 * SECOND));
    HOLDS(deferred && !sw_completion_is_done(waiting.completion));
    sw_bytes done = bytes_of("at last");
    MUST(sw_deferred_reply(deferred, 1, &done));
    MUST(sw_completion_wait(waiting.completion, 30 * SECOND));
    HOLDS(text(sw_answer_part(waiting.answer, 0)) == "at last");
    sw_answer_free(waiting.answer);
    sw_completion_free(waiting.completion);

    // A stop waits for the handler that runs: what it uses may be given up after it.
    MUST(sw_messages_request_start(client, link, "words.slow", 0, nullptr, 0, dropped, nullptr));
    MUST(sw_completion_wait(slow.begun, 30 * SECOND));
    slow.messages = server;
    MUST(sw_messages_stop(server));
    HOLDS(slow.done && slow.stopped == SW_INVALID);
    sw_completion_free(slow.begun);
    sw_completion_free(slow.never);
    sw_link_close(client, link);
    MUST(sw_messages_stop(client));
    sw_completion_free(told);
    printf("answered by %.*s\n", 3, address);
    return 0;
}
