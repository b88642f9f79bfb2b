/*
 * A test harness in one page: TEST(name) { ... CHECK(condition); ... }
 *
 * Each program runs the tests named as arguments, or all; one that fails says where and exits with 1.
 * tests/native/test_c.py finds the names in the sources, so each is a test of its own there.
 */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef CHECK_NO_MAIN /* a program with a main of its own has no tests */
struct check_test {
    const char *name;
    void (*run)(void);
    struct check_test *next;
};

static struct check_test *check_tests;

#define TEST(test_name)                                                                  \
    static void test_name(void);                                                         \
    __attribute__((constructor)) static void check_register_##test_name(void)            \
    {                                                                                    \
        static struct check_test test = {#test_name, test_name, NULL};                   \
        test.next = check_tests;                                                         \
        check_tests = &test;                                                             \
    }                                                                                    \
    static void test_name(void)
#endif

#define CHECK(condition)                                                                 \
    do {                                                                                 \
        if (!(condition))                                                                \
            check_fail(__FILE__, __LINE__, #condition);                                  \
    } while (0)

/* Both sides as numbers, which are printed when they differ. */
#define CHECK_EQUAL(seen, wanted)                                                        \
    do {                                                                                 \
        long long check_seen = (long long)(seen), check_wanted = (long long)(wanted);    \
        if (check_seen != check_wanted) {                                                \
            fprintf(stderr, "%lld, not %lld: ", check_seen, check_wanted);               \
            check_fail(__FILE__, __LINE__, #seen " == " #wanted);                        \
        }                                                                                \
    } while (0)

static _Noreturn inline void check_fail(const char *file, int line, const char *what)
{
    fprintf(stderr, "FAILED %s:%d: %s\n", file, line, what);
    fflush(NULL);
    _Exit(1);
}

#ifndef CHECK_NO_MAIN
int main(int argc, char **argv)
{
    int ran = 0;
    for (struct check_test *test = check_tests; test != NULL; test = test->next) {
        int wanted = argc == 1;
        for (int i = 1; i < argc; i++)
            wanted |= strcmp(argv[i], test->name) == 0;
        if (!wanted)
            continue;
        test->run();
        printf("ok %s\n", test->name);
        ran++;
    }
    if (ran == 0)
        fprintf(stderr, "no such test\n");
    return ran == 0;
}
#endif

#endif
