/*
 * For libFuzzer: clang -fsanitize=fuzzer,address,undefined -Inative/client
 * native/tests/fuzz_msgpack.c native/client/msgpack.c
 */
#include "exercise_msgpack.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    (void)exercise_msgpack(data, nbytes);
    return 0;
}
