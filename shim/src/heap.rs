//! The heap of programs linked with musl, whose own asks the kernel for each larger piece and gives it back: half as many system
//! calls again in a create.

use dlmalloc::GlobalDlmalloc;

#[global_allocator]
static HEAP: GlobalDlmalloc = GlobalDlmalloc;
