/* A fault to be found: a writer that reclaims without looking for pins. --wrap=mcpd_writer_pinned. */
#include "writer.h"

int __wrap_mcpd_writer_pinned(const mcpd_writer *writer, uint64_t tag);

int __wrap_mcpd_writer_pinned(const mcpd_writer *writer, uint64_t tag)
{
    (void)writer;
    (void)tag;
    return 0;
}
