/* All of Carousel's public headers.
 *
 * @mainpage
 *
 * A car_run (run.h) goes from model and data to trained weights, in one process or over ranks. It is made of smaller
 * handles, which you can also use directly. Create them in this order, and destroy them in reverse:
 *
 * - car_context: errors, logging and the allocator
 * - car_graph: a model, from car_model_build() or from the builders in graph.h
 * - car_partition: the graph cut into stages
 * - car_plan: who computes what, when, and with which weights; car_plan_validate() proves it
 * - car_program: the graph with kernels chosen for this machine
 * - car_arena: the memory
 * - car_trainer: executes the plan in one process; car_rank does so over the ranks of a car_transport
 *
 * Functions that can fail return a car_status and leave a message in the context, see car_context_error(). Each
 * header can be included alone. examples/quickstart.c is a complete program; it is installed in
 * share/doc/carousel/examples. */
#ifndef CAROUSEL_CAROUSEL_H
#define CAROUSEL_CAROUSEL_H

#include "carousel/arena.h"
#include "carousel/available.h"
#include "carousel/card.h"
#include "carousel/checkpoint.h"
#include "carousel/cluster.h"
#include "carousel/context.h"
#include "carousel/convention.h"
#include "carousel/correction.h"
#include "carousel/data.h"
#include "carousel/evaluate.h"
#include "carousel/events.h"
#include "carousel/feeder.h"
#include "carousel/file.h"
#include "carousel/fit.h"
#include "carousel/generate.h"
#include "carousel/graph.h"
#include "carousel/image.h"
#include "carousel/language.h"
#include "carousel/loader.h"
#include "carousel/mapping.h"
#include "carousel/model.h"
#include "carousel/muon.h"
#include "carousel/optimizer.h"
#include "carousel/partition.h"
#include "carousel/placement.h"
#include "carousel/plan.h"
#include "carousel/predict.h"
#include "carousel/profile.h"
#include "carousel/program.h"
#include "carousel/rank.h"
#include "carousel/recommend.h"
#include "carousel/recorder.h"
#include "carousel/report.h"
#include "carousel/rule.h"
#include "carousel/run.h"
#include "carousel/safetensors.h"
#include "carousel/snapshot.h"
#include "carousel/stage.h"
#include "carousel/status.h"
#include "carousel/tape.h"
#include "carousel/tokenizer.h"
#include "carousel/trained.h"
#include "carousel/trainer.h"
#include "carousel/transport.h"
#include "carousel/utf8.h"
#include "carousel/version.h"

#endif
