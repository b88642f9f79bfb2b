/*
 * Errors: codes of docs/control.md, their errno, and the texts that go with a failure.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "client.h"

static const struct {
    const char *code;
    int number;
} codes[] = {
    {"invalid", -EINVAL},       {"model", -EREMOTEIO},      {"timeout", -ETIMEDOUT},
    {"worker_died", -EOWNERDEAD}, {"internal", -EIO},       {"limit", -EDQUOT},
    {"not_found", -ENOENT},     {"exists", -EEXIST},        {"not_permitted", -EPERM},
    {"no_memory", -ENOMEM},     {"ended", -EPIPE},          {"protocol", -EPROTO},
    {"version", -EPROTONOSUPPORT}, {"unavailable", -ENOTCONN}, {"would_block", -EAGAIN},
    {"segment_lost", -EFAULT},
};
#define NCODES (sizeof codes / sizeof *codes)

static int number_of(const char *code)
{
    for (size_t i = 0; i < NCODES; i++)
        if (strcmp(codes[i].code, code) == 0)
            return codes[i].number;
    return -EIO; /* of a daemon that is newer than this */
}

const char *mcpd_code_of(int number)
{
    switch (number) {
    case -ENOSPC:
    case -EUSERS:
    case -EBUSY:
        return "limit";
    case -EBADMSG:
        return "protocol";
    case -ENOTSUP:
        return "invalid";
    }
    for (size_t i = 0; i < NCODES; i++)
        if (codes[i].number == number)
            return codes[i].code;
    return "internal";
}

/* Ends a text that was cut within a character before that character. */
static void end_text(char *text, size_t size, size_t length)
{
    if (length < size)
        return;
    size_t end = size - 1;
    while (end > 0 && ((uint8_t)text[end - 1] & 0xc0) == 0x80)
        end--;
    if (end > 0 && (uint8_t)text[end - 1] >= 0xc0)
        end--;
    if (size - 1 - end > 0)
        text[end] = 0;
}

int mcpd_fail(struct mcpd_error *error, const char *code, const char *hint, const char *format, ...)
{
    int number = number_of(code);
    if (error == NULL)
        return number;
    memset(error, 0, sizeof *error);
    error->number = number;
    snprintf(error->code, sizeof error->code, "%s", code);
    snprintf(error->hint, sizeof error->hint, "%s", hint);
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    end_text(error->message, sizeof error->message, length < 0 ? 0 : (size_t)length);
    return number;
}

int mcpd_fail_as(struct mcpd_error *error, const struct mcpd_value *message)
{
    struct mcpd_error said = {0};
    if (mcpd_map_text(message, "code", said.code, sizeof said.code) != 0 ||
        mcpd_map_text(message, "message", said.message, sizeof said.message) != 0 ||
        mcpd_map_text(message, "hint", said.hint, sizeof said.hint) != 0 || said.code[0] == 0)
        return mcpd_fail(error, "protocol", "", "the daemon's error is not readable");
    said.number = number_of(said.code);
    if (error != NULL)
        *error = said;
    return said.number;
}
