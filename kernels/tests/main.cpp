// Runs the tests whose names are given, or all of them. Given `names`, prints the names.
#include "harness.h"

#include <ctime>

extern const Test PRODUCTS[], QKV[], ATTENTION[], SAMPLING[], CHAIN[], ADAPTERS[], MEDUSA[],
    RANKS[];

int main(int argc, char **argv) {
    const bool names = argc == 2 && !strcmp(argv[1], "names");
    int count = 0;
    for (const Test *list : {PRODUCTS, QKV, ATTENTION, SAMPLING, CHAIN, ADAPTERS, MEDUSA, RANKS})
        for (const Test *t = list; t->name; t++) {
            bool wanted = argc == 1;
            for (int i = 1; i < argc; i++) wanted |= !strcmp(argv[i], t->name);
            if (names) puts(t->name);
            if (!wanted) continue;
            clock_t before = clock();
            t->run();
            printf("ok %-22s %6.2f s\n", t->name, (double)(clock() - before) / CLOCKS_PER_SEC);
            fflush(stdout);
            count++;
        }
    CHECK(names || count > 0, "no test of that name");
    return 0;
}
