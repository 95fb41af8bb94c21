// The fibers for a library that is loaded many times over: of the reserve that the loader has for
// thread-local memory with fixed places, a few copies would take all.
#define EMU_LOADED_MANY_TIMES
#include "../fibers.cpp"
