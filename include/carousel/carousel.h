/* All of Carousel's public headers.
 *
 * @mainpage
 *
 * A car_run (run.h) goes from model and data to trained weights, in one process or over ranks. It is made of handles
 * that can be used on their own, too, made in this order and destroyed in reverse:
 *
 * - car_context: where errors, logs and the allocator live
 * - car_graph: a model: car_model_build(), or one's own by the builders of graph.h
 * - car_partition: the graph cut into stages
 * - car_plan: who computes what when, with which weights; car_plan_validate() proves it
 * - car_program: the graph with kernels chosen for this machine
 * - car_arena: the memory of all of it
 * - car_trainer: executes the plan, in one process; car_rank, over ranks of a car_transport
 *
 * Functions that can fail return a car_status and leave a message in the context: car_context_error(). Every header
 * stands on its own. examples/quickstart.c is a whole program; installed,
 * it is in share/doc/carousel/examples. */
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
#include "carousel/trainer.h"
#include "carousel/transport.h"
#include "carousel/utf8.h"
#include "carousel/version.h"

#endif
