// Runs the tests whose names are given, or all.
#include "harness.h"

#include <ctime>

extern const Test PRODUCTS[], ATTENTION[], SAMPLING[], CHAIN[];

int main(int argc, char **argv) {
    int count = 0;
    for (const Test *list : {PRODUCTS, ATTENTION, SAMPLING, CHAIN})
        for (const Test *t = list; t->name; t++) {
            bool wanted = argc == 1;
            for (int i = 1; i < argc; i++) wanted |= !strcmp(argv[i], t->name);
            if (!wanted) continue;
            clock_t before = clock();
            t->run();
            printf("ok %-22s %6.2f s\n", t->name, (double)(clock() - before) / CLOCKS_PER_SEC);
            fflush(stdout);
            count++;
        }
    CHECK(count > 0, "no test of that name");
    printf("%d tests passed on %d schedules\n", count, schedules());
    return 0;
}
