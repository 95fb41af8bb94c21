// The fibers for a library that is loaded many times. The loader's reserve for thread-local memory
// at fixed places would not suffice for more than a few copies.
#define EMU_LOADED_MANY_TIMES
#include "../fibers.cpp"
