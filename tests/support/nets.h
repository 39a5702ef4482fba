/* Small networks for tests. Together they cover every operation, residual connections, tied weights, and numbers of
 * channels that do not fill blocks of 8 or 16. */
#ifndef CAR_TESTS_NETS_H
#define CAR_TESTS_NETS_H

#include "carousel/graph.h"

/* At least as many classes and tokens as car_rig_feed draws from. */
enum { CAR_NET_CLASSES = 5 };

/* Appends a network to an empty graph and returns its loss for car_graph_finish. */
typedef int (*car_net_function)(car_graph *graph);

int car_net_residual(car_graph *graph); /* convolutions, normalisations, pools, shortcuts */
int car_net_language(car_graph *graph); /* two causal transformer blocks, tied head, dropout */
int car_net_patches(car_graph *graph);  /* patches, class token, one transformer block */

/* Operations before the first parameter, one of which stores something for a backward that never comes. */
int car_net_pool_first(car_graph *graph);

/* Shorter builders. */
int car_net_conv(car_graph *graph, const char *name, int x, int channels, int kernel, int stride);
int car_net_norm(car_graph *graph, const char *name, int x, int residual, bool relu);
int car_net_linear(car_graph *graph, const char *name, int x, int out);

#endif
