// Includes everything that a trainer needs. Programs that only watch include coxswain/session.h
// alone.
#pragma once

#include "coxswain/adamw.h"
#include "coxswain/block.h"
#include "coxswain/clip.h"
#include "coxswain/dataset.h"
#include "coxswain/error.h"
#include "coxswain/fit.h"
#include "coxswain/loss_scaler.h"
#include "coxswain/manual.h"
#include "coxswain/master_weights.h"
#include "coxswain/precision.h"
#include "coxswain/reducer.h"
#include "coxswain/safetensors.h"
#include "coxswain/sample_plan.h"
#include "coxswain/session.h"
#include "coxswain/tile.h"
#include "coxswain/trainer.h"
#include "coxswain/weight_average.h"
