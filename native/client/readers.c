/*
 * Streams that this session reads: attached to, alone or in a group.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "steps.h"
#include "stream.h"

static const char *const policies[] = {
    [MCPD_LATEST] = "latest", [MCPD_FIFO] = "fifo", [MCPD_LOSSLESS] = "lossless"};

const char *mcpd_policy_name(uint32_t policy)
{
    return policy < sizeof policies / sizeof *policies ? policies[policy] : NULL;
}

int mcpd_admission_read(const struct mcpd_value *message, struct mcpd_admission *admission)
{
    char policy[16] = "";
    uint64_t member = 0, max_pins = 0, depth = 0;
    memset(admission, 0, sizeof *admission);
    if ((mcpd_map_text(message, "policy", policy, sizeof policy) |
         mcpd_map_unsigned(message, "group", UINT64_MAX, &admission->group) |
         mcpd_map_unsigned(message, "member", UINT32_MAX, &member) |
         mcpd_map_unsigned(message, "max_pins", UINT32_MAX, &max_pins) |
         mcpd_map_unsigned(message, "depth", UINT32_MAX, &depth)) != 0)
        return -EBADMSG;
    admission->member = (uint32_t)member;
    admission->max_pins = (uint32_t)max_pins;
    admission->depth = (uint32_t)depth;
    for (uint32_t code = MCPD_LATEST; code <= MCPD_LOSSLESS; code++)
        if (strcmp(policies[code], policy) == 0)
            admission->policy = code;
    return admission->policy != 0 ? 0 : -EBADMSG;
}

int mcpd_map_reader(struct mcpd_client *client, const struct mcpd_value *granted,
                    struct mcpd_answer *answer, const struct mcpd_reader_options *options,
                    mcpd_stream **out, struct mcpd_error *error)
{
    struct mcpd_stream *stream = mcpd_stream_new(client, granted, error);
    struct mcpd_generation *first = stream != NULL ? calloc(1, sizeof *first) : NULL;
    int result = stream == NULL ? -EPROTO : 0;
    if (result == 0 && first == NULL)
        result = mcpd_fail(error, "no_memory", "", "no memory for a stream");
    if (result == 0) {
        stream->moves.now = first;
        stream->moves.follow = options->follow;
        stream->thinning = options->thinning;
        first->grant = stream->grant;
        memcpy(first->fds, answer->fds, answer->nfds * sizeof *first->fds);
        first->nfds = answer->nfds;
        answer->nfds = 0;
        result = mcpd_generation_map(stream, first, error);
    }
    if (result != 0)
        return mcpd_stream_unmake(client, stream, MCPD_UNDO_READER, granted, result);
    mcpd_client_use(client);
    mcpd_stream_list(stream);
    MCPD_STEP("client.attach.listed");
    *out = stream;
    return 0;
}

static int pack_attach(struct mcpd_message *message, const char *name,
                       const struct mcpd_reader_options *options, struct mcpd_error *error)
{
    const char *policy = mcpd_policy_name(options->policy != 0 ? options->policy : MCPD_LATEST);
    if (policy == NULL)
        return mcpd_fail(error, "invalid", "See enum mcpd_policy.", "no policy has the number %u",
                         options->policy);
    struct mcpd_pack *pack = &message->pack;
    mcpd_message(message, "attach_reader", 6);
    mcpd_pack_text(pack, "stream");
    mcpd_pack_text(pack, name);
    mcpd_pack_text(pack, "policy");
    mcpd_pack_text(pack, policy);
    mcpd_pack_text(pack, "depth");
    mcpd_pack_unsigned(pack, options->depth);
    mcpd_pack_text(pack, "max_pins");
    mcpd_pack_unsigned(pack, options->max_pins != 0 ? options->max_pins : 2);
    mcpd_pack_text(pack, "group");
    mcpd_pack_text(pack, options->group != NULL ? options->group : "");
    mcpd_pack_text(pack, "follow");
    mcpd_pack_bool(pack, options->follow == MCPD_FOLLOW_NAME);
    return 0;
}

int mcpd_attach(mcpd_client *client, const char *name, const struct mcpd_reader_options *options,
                mcpd_stream **out, struct mcpd_error *error)
{
    static const struct mcpd_reader_options defaults;
    struct mcpd_message message;
    struct mcpd_answer answer;
    if (options == NULL)
        options = &defaults;
    const struct mcpd_thinning *thinning = &options->thinning;
    int thins = thinning->every_n > 1 || thinning->interval_ns != 0 || thinning->skip_expired;
    int in_group = options->group != NULL && options->group[0] != 0;
    if (thinning->interval_ns < 0 || (thins && in_group))
        return mcpd_fail(error, "invalid", "Thin alone, or share the frames of a group.",
                         "a reader of a group thins, or interval_ns is %lld",
                         (long long)thinning->interval_ns);
    if (options->follow > MCPD_FOLLOW_NAME)
        return mcpd_fail(error, "invalid", "See enum mcpd_follow.", "follow is %u",
                         options->follow);
    int result = pack_attach(&message, name, options, error);
    if (result == 0)
        result = mcpd_request(client, &message, MCPD_REQUEST_NS, MCPD_UNDO_READER, &answer, error);
    if (result != 0)
        return result;
    MCPD_STEP("client.attach.granted");
    result = mcpd_map_reader(client, &answer.result, &answer, options, out, error);
    mcpd_answer_clear(&answer);
    return result;
}
