/* Bytes between the registered memory of two processes: this one, and one that it forks before anything is started. */
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

enum { BYTES = 1 << 20, HALF = BYTES / 2 };

/* What the owner of the memory tells the other side. */
struct offer {
    size_t segment_bytes;
    char segment[1024];
    sw_capability whole, first_half;
};

/* Lends memory until its peer has written the second half of it. */
static int lend(int other) {
    sw_engine_options options = {0};
    options.name = "lender";
    options.listen = "127.0.0.1:0";
    sw_engine *engine;
    MUST(sw_engine_start(&options, &engine));
    sw_region region;
    void *memory;
    MUST(sw_engine_allocate(engine, BYTES, SW_READ | SW_WRITE, &region, &memory));
    memset(memory, 'a', BYTES);

    struct offer offer;
    memset(&offer, 0, sizeof offer);
    sw_buffer into = {offer.segment, sizeof offer.segment};
    MUST(sw_engine_segment(engine, into, &offer.segment_bytes));
    MUST(sw_engine_grant(engine, region, 0, BYTES, SW_READ | SW_WRITE, SW_FOREVER, &offer.whole));
    MUST(sw_engine_grant(engine, region, 0, HALF, SW_READ, 60 * SECOND, &offer.first_half));
    HOLDS(sw_engine_grant(engine, region, 1, BYTES, SW_READ, SW_FOREVER, &offer.whole) == SW_INVALID);
    HOLDS(write(other, &offer, sizeof offer) == sizeof offer);

    sw_notices *notices;
    MUST(sw_engine_notices(engine, 60 * SECOND, &notices));
    sw_bytes name, content;
    sw_notices_at(notices, 0, &name, &content);
    HOLDS(sw_notices_count(notices) == 1 && name.bytes == 7 && memcmp(name.data, "written", 7) == 0);
    HOLDS(content.bytes == 1 && *(const char *)content.data == 'b');
    sw_notices_free(notices);
    char *bytes = memory;
    HOLDS(bytes[HALF - 1] == 'a' && bytes[HALF] == 'b' && bytes[BYTES - 1] == 'b');

    MUST(sw_engine_unregister(engine, region, 10 * SECOND));
    HOLDS(sw_engine_unregister(engine, region, SECOND) == SW_INVALID);
    sw_engine_close(engine);
    return 0;
}

static void on_end(void *context) { sw_completion_end(context, SW_OK); }

int main(void) {
    int sockets[2];
    HOLDS(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    pid_t child = fork();
    HOLDS(child >= 0);
    if (child == 0) return lend(sockets[1]);

    struct offer offer;
    HOLDS(recv(sockets[0], &offer, sizeof offer, MSG_WAITALL) == sizeof offer);
    sw_engine *engine;
    MUST(sw_engine_start(NULL, &engine));
    sw_peer peer, again;
    sw_bytes segment = {offer.segment, offer.segment_bytes};
    MUST(sw_engine_open(engine, segment, &peer));
    MUST(sw_engine_open(engine, segment, &again));
    HOLDS(peer == again && sw_engine_open(engine, bytes_of("{}"), &again) == SW_INVALID);
    MUST(sw_engine_probe(engine, peer, 10 * SECOND));

    char *mine = malloc(BYTES);
    sw_buffer first = {mine, HALF};
    MUST(sw_engine_read(engine, peer, 0, &offer.first_half, first, 10 * SECOND));
    HOLDS(mine[0] == 'a' && mine[HALF - 1] == 'a');
    /* A capability is for its range and its rights. */
    sw_bytes one = {"z", 1};
    HOLDS(sw_engine_write(engine, peer, 0, &offer.first_half, one, SECOND) == SW_NOT_PERMITTED);
    HOLDS(sw_engine_read(engine, peer, 1, &offer.first_half, first, SECOND) != SW_OK);
    sw_capability forged = offer.whole;
    forged.data[SW_CAPABILITY_BYTES - 1] ^= 1;
    HOLDS(sw_engine_write(engine, peer, 0, &forged, one, SECOND) != SW_OK);

    /* Many at once: the second half, in pieces, from registered memory. */
    sw_region region;
    sw_buffer all = {mine, BYTES};
    MUST(sw_engine_register(engine, all, SW_READ, &region));
    memset(mine, 'b', BYTES);
    enum { PIECES = 16, PIECE = HALF / PIECES };
    sw_transfer transfers[PIECES];
    for (int piece = 0; piece < PIECES; piece++) {
        sw_transfer *transfer = &transfers[piece];
        memset(transfer, 0, sizeof *transfer);
        transfer->write = true;
        transfer->region = region;
        transfer->offset = piece * PIECE;
        transfer->bytes = PIECE;
        transfer->peer = peer;
        transfer->peer_offset = HALF + piece * PIECE;
        transfer->capability = offer.whole;
    }
    sw_batch *batch;
    MUST(sw_engine_submit(engine, PIECES, transfers, 10 * SECOND, &batch));
    sw_completion *ended;
    MUST(sw_completion_new(1, &ended));
    MUST(sw_batch_on_end(batch, on_end, ended));
    MUST(sw_batch_wait(batch, 10 * SECOND));
    MUST(sw_completion_wait(ended, 10 * SECOND));
    sw_completion_free(ended);
    uint64_t moved = 0;
    HOLDS(sw_batch_is_done(batch) && sw_batch_outcome(batch, PIECES, &moved) != SW_OK);
    for (int piece = 0; piece < PIECES; piece++) {
        MUST(sw_batch_outcome(batch, piece, &moved));
        HOLDS(moved == PIECE);
    }
    sw_batch_free(batch);
    transfers[3].region = 99;
    HOLDS(sw_engine_submit(engine, PIECES, transfers, SECOND, &batch) == SW_INVALID);

    MUST(sw_engine_notify(engine, peer, "written", (sw_bytes){"b", 1}, 10 * SECOND));
    int status = -1;
    HOLDS(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    HOLDS(sw_engine_read(engine, peer, 0, &offer.first_half, first, SECOND) != SW_OK);
    MUST(sw_engine_unregister(engine, region, 10 * SECOND));
    MUST(sw_engine_forget(engine, peer));
    sw_engine_close(engine);
    free(mine);
    printf("%d bytes there, and as many back\n", HALF);
    return 0;
}
