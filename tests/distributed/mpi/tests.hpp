// The tests by name. Each is called on all ranks and says on every rank whether all is right there.
#pragma once

namespace onepass::test {

bool exact();             // errors beside those of one device
bool features();          // masks, documents, side inputs and dtypes on all layouts
bool mesh();              // features on nodes of 1 rank to all ranks
bool mesh_differs();      // one rank of a mesh with another call, or one that throws
bool fp8();               // e4m3 q, k and v with factors
bool reproducible();      // the same bits for any number of ranks
bool few_rows();          // lengths 0, 1 and ranks - 1; ranks without rows
bool decoding();          // a cache whose keys are spread over the ranks
bool decoding_differs();  // one rank with another call of it
bool unseen_nan();        // keys that a row does not see are NaN
bool differ();            // one rank with another shape, option or layout
bool overlap();           // exchanges begin before the calls that they go on beside
bool throws();            // one rank throws in mid-call, or MPI refuses its exchange
bool late();              // one rank does not come
bool exits();             // one rank's process ends in mid-call
bool two_at_once();       // two transports in two threads
bool groups();            // two communicators of some ranks

}  // namespace onepass::test
