/* Misuse that AddressSanitizer must find: proof that the runs of the other tests look for it. */
#include "fixture.h"

TEST(a_handle_is_used_after_close)
{
    struct stream s;
    struct attached r;
    stream_open(&s, 8, 1, 2);
    attach(&s, &r, MCPD_LATEST, 2);
    mcpd_reader_close(r.reader);
    mcpd_reader_ended(r.reader);
}

TEST(a_handle_is_forgotten)
{
    struct stream s;
    stream_open(&s, 8, 1, 2);
    memset(&s, 0, sizeof s);
}

TEST(a_slot_is_read_after_the_mapping_is_gone)
{
    struct stream s;
    stream_open(&s, 8, 1, 2);
    volatile uint64_t *word = mcpd_writer_slot(s.writer, 0);
    stream_close(&s);
    *word = 1;
}
