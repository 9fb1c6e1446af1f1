/* A client of a served store: `slackwater serve`, then ./store [ADDRESS]. */
#include "common.h"

enum { BLOCKS = 128, BLOCK_BYTES = 4096 };

int main(int count, char **arguments) {
    sw_connect_options options = {0};
    options.address = count > 1 ? arguments[1] : NULL;
    sw_client *client;
    MUST(sw_client_connect(&options, &client));

    MUST(sw_client_put(client, bytes_of("greeting"), bytes_of("hello"), NULL));
    HOLDS(sw_client_put(client, bytes_of("greeting"), bytes_of("hi"), NULL) == SW_EXISTS);
    sw_put_options replace = {0};
    replace.upsert = true;
    MUST(sw_client_put(client, bytes_of("greeting"), bytes_of("good morning"), &replace));

    sw_value *value;
    MUST(sw_client_get_value(client, bytes_of("greeting"), NULL, &value));
    sw_bytes read = sw_value_bytes(value);
    HOLDS(read.bytes == 12 && memcmp(read.data, "good morning", 12) == 0);
    sw_value_free(value);

    /* A buffer that is too small says how much is needed, and a miss is a status of its own. */
    char small[4];
    sw_buffer into = {small, sizeof small};
    size_t bytes = 0;
    HOLDS(sw_client_get(client, bytes_of("greeting"), into, NULL, &bytes) == SW_TOO_SMALL && bytes == 12);
    HOLDS(sw_client_get(client, bytes_of("nobody"), into, NULL, &bytes) == SW_NOT_FOUND);

    /* Blocks of a prompt, written and read together. */
    char *blocks = malloc(2 * BLOCKS * BLOCK_BYTES), names[BLOCKS][16];
    sw_bytes keys[BLOCKS], values[BLOCKS];
    sw_buffer buffers[BLOCKS];
    for (int block = 0; block < BLOCKS; block++) {
        snprintf(names[block], sizeof names[block], "block-%d", block);
        keys[block] = bytes_of(names[block]);
        char *start = blocks + block * BLOCK_BYTES;
        memset(start, block, BLOCK_BYTES);
        values[block] = (sw_bytes){start, BLOCK_BYTES};
        buffers[block] = (sw_buffer){start + BLOCKS * BLOCK_BYTES, BLOCK_BYTES};
    }
    sw_status stored[BLOCKS];
    MUST(sw_client_put_batch(client, BLOCKS, keys, values, NULL, stored));
    int64_t results[BLOCKS];
    MUST(sw_client_get_batch(client, BLOCKS, keys, buffers, NULL, results));
    for (int block = 0; block < BLOCKS; block++) HOLDS(stored[block] == SW_OK && results[block] == BLOCK_BYTES);
    HOLDS(memcmp(blocks, blocks + BLOCKS * BLOCK_BYTES, BLOCKS * BLOCK_BYTES) == 0);
    buffers[1] = buffers[0];
    HOLDS(sw_client_get_batch(client, BLOCKS, keys, buffers, NULL, results) == SW_INVALID);

    sw_stat stat;
    MUST(sw_client_stat(client, keys[7], NULL, &stat));
    HOLDS(stat.bytes == BLOCK_BYTES && stat.replicas == 1);
    sw_keys *listed;
    MUST(sw_client_list(client, "^block-", NULL, 100, NULL, &listed));
    HOLDS(sw_keys_count(listed) == 100 && sw_keys_more(listed) && sw_keys_at(listed, 0).bytes == 7);
    HOLDS(sw_keys_at(listed, 100).bytes == 0);
    sw_keys_free(listed);

    /* A call that was cancelled before it began does nothing. */
    sw_cancel *cancel;
    MUST(sw_cancel_new(&cancel));
    sw_cancel_all(cancel);
    sw_call_options given_up = {0};
    given_up.cancel = cancel;
    HOLDS(sw_client_get(client, keys[0], buffers[0], &given_up, &bytes) == SW_CANCELLED);
    sw_cancel_free(cancel);

    MUST(sw_client_remove(client, BLOCKS, keys, true, NULL, stored));
    bool found[BLOCKS];
    MUST(sw_client_exists(client, BLOCKS, keys, NULL, found));
    for (int block = 0; block < BLOCKS; block++) HOLDS(stored[block] == SW_OK && !found[block]);
    MUST(sw_client_remove(client, 1, (sw_bytes[]){bytes_of("greeting")}, true, NULL, stored));

    HOLDS(sw_client_put(NULL, keys[0], values[0], NULL) == SW_INVALID);
    HOLDS(strstr(sw_last_error(), "client is null"));
    free(blocks);
    sw_client_close(client);
    printf("%d blocks there and back\n", BLOCKS);
    return 0;
}
