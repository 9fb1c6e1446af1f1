/* What the examples share: the end of a program whose call failed. */
#ifndef COMMON_H
#define COMMON_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "slackwater.h"

#define SECOND UINT64_C(1000000000)

/* Ends the program unless the call did what was asked. */
#define MUST(call)                                                                              \
    do {                                                                                        \
        sw_status status_ = (call);                                                             \
        if (status_ != SW_OK) {                                                                 \
            fprintf(stderr, "%s: %s (%s)\n", #call, sw_last_error(), sw_status_name(status_));  \
            exit(1);                                                                            \
        }                                                                                       \
    } while (0)

/* Ends the program unless this holds. */
#define HOLDS(truth)                                                                            \
    do {                                                                                        \
        if (!(truth)) {                                                                         \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #truth);           \
            exit(1);                                                                            \
        }                                                                                       \
    } while (0)

static inline sw_bytes bytes_of(const char *text) {
    sw_bytes bytes;
    bytes.data = text;
    bytes.bytes = strlen(text);
    return bytes;
}

#endif
