--[[ Reports everything that the rules of a step depend on, in one observation, and what was drawn at random.

Nothing here draws a number or queues a change during a step: functions of the level
are called as before, and what they are called with is noted.

WORLD.SITES, [number of sites, 3]: column, row and kind (1 apple, 2 dirt, 3 water) of
each site, in the order of WORLD.WITNESS.

WORLD.WITNESS, doubles:
  for each player: reward, dirt cells cleaned, players zapped, 1 if in the game,
    column, row, heading (0 north .. 3 west), frames until zap and clean are ready,
    how many others cleaned (as players are told), READY_TO_SHOOT, when it was this
    player's turn to move in this frame (1 first)
  for each apple site: 1 if live, neighbours (the class it waits in; -1 none),
    1 if the level made it grow in this frame, 1 if its grass has withered
  for each dirt site: 1 if dirty, 1 if the level made it dirty in this frame
  for each river cell: frame of the water, from 0
Reading it begins a new frame.
]]

local args = require 'common.args'
local class = require 'common.class'
local tensor = require 'system.tensor'

local meltingpot = 'meltingpot.lua.modules.'
local component = require(meltingpot .. 'component')
local component_registry = require(meltingpot .. 'component_registry')

local HEADINGS = {N = 0, E = 1, S = 2, W = 3}
local APPLE, DIRT, WATER = 1, 2, 3

--[[ A component of each player: which way it faces at the start, and when it moves. ]]
local Watched = class.Class(component.Component)

function Watched:__init__(kwargs)
  kwargs = args.parse(kwargs, {
      {'name', args.default('Watched')},
      {'heading', args.default('')},
  })
  Watched.Base.__init__(self, kwargs)
  self._config.heading = kwargs.heading
end

function Watched:awake()
  local avatar = self.gameObject:getComponent('Avatar')
  local register = avatar.registerUpdaters
  avatar.registerUpdaters = function(itself, registry)
    register(itself, {
        registerUpdater = function(_, updater)
          local move = updater.updateFn
          updater.updateFn = function()
            local witness = self.gameObject.simulation:getSceneObject():getComponent('Witness')
            self.turn = witness:nextTurn()
            move()
          end
          registry:registerUpdater(updater)
        end
    })
  end
end

function Watched:postStart()
  if self._config.heading ~= '' then
    self.gameObject:setOrientation(self._config.heading)
  end
end

local Witness = class.Class(component.Component)

function Witness:__init__(kwargs)
  kwargs = args.parse(kwargs, {
      {'name', args.default('Witness')},
  })
  Witness.Base.__init__(self, kwargs)
end

function Witness:reset()
  self._turns = 0
end

function Witness:nextTurn()
  self._turns = self._turns + 1
  return self._turns
end

--[[ Note when the level tells a site to take a state. ]]
local function watch(object, state)
  local setState = object.setState
  object.setState = function(self, newState)
    if newState == state then
      self.toldTo = true
    end
    setState(self, newState)
  end
end

function Witness:_find()
  local simulation = self.gameObject.simulation
  self._players, self._sites = {}, {}
  for _, object in pairs(simulation:getAvatarGameObjects()) do
    self._players[object:getComponent('Avatar'):getIndex()] = object
  end
  for _, object in pairs(simulation:getAllGameObjects()) do
    local kind
    if object:hasComponent('AppleGrow') or object:hasComponent('DensityRegrow') then
      kind = APPLE
      watch(object, 'apple')
    elseif object:hasComponent('DirtTracker') then
      kind = DIRT
      watch(object, 'dirt')
    elseif object:hasComponent('Animation') then
      kind = WATER
    end
    if kind then
      self._sites[#self._sites + 1] = {object = object, kind = kind}
    end
  end
end

function Witness:_sort()
  for _, site in ipairs(self._sites) do
    site.place = site.object:getPosition()
  end
  table.sort(self._sites, function(a, b)
    if a.kind ~= b.kind then return a.kind < b.kind end
    if a.place[2] ~= b.place[2] then return a.place[2] < b.place[2] end
    return a.place[1] < b.place[1]
  end)
end

local function player(object, put)
  local avatar, zapper = object:getComponent('Avatar'), object:getComponent('Zapper')
  local cleaner = object:hasComponent('Cleaner') and object:getComponent('Cleaner')
  local others = object:hasComponent('AllNonselfCumulants') and object:getComponent('AllNonselfCumulants')
  local place = object:getPosition()
  put(avatar:getReward())
  put(cleaner and cleaner.player_cleaned or 0)
  put(zapper.num_others_player_zapped_this_step)
  put(avatar:isAlive() and 1 or 0)
  put(place[1])
  put(place[2])
  put(HEADINGS[object:getOrientation()])
  put(zapper._coolingTimer)
  put(cleaner and cleaner._coolingTimer or 0)
  put(others and others.num_others_who_cleaned_this_step or 0)
  put(zapper:readyToShoot())
  put(object:getComponent('Watched').turn or 0)
end

local function site(kind, object, put)
  local state = object:getState()
  if kind == APPLE then
    local grass = object:hasComponent('DensityRegrow') and object:getComponent('DensityRegrow')._underlyingGrass
    put(state == 'apple' and 1 or 0)
    put(tonumber(string.match(state, '^appleWait_(%d+)$') or -1))
    put(object.toldTo and 1 or 0)
    put(grass and grass:getState() == 'dessicated' and 1 or 0)
  elseif kind == DIRT then
    put(state == 'dirt' and 1 or 0)
    put(object.toldTo and 1 or 0)
  else
    put(tonumber(string.match(state, '(%d+)$')) - 1)
  end
  object.toldTo = false
end

function Witness:addObservations(tileSet, world, observations)
  self:_find()
  local size = 12 * #self._players
  for _, each in ipairs(self._sites) do
    size = size + ({4, 2, 1})[each.kind]
  end
  local sites, report = tensor.DoubleTensor(#self._sites, 3), tensor.DoubleTensor(size)
  observations[#observations + 1] = {
      name = 'WORLD.SITES',
      type = 'tensor.DoubleTensor',
      shape = {#self._sites, 3},
      func = function(grid)
        self:_sort()
        for i, each in ipairs(self._sites) do
          sites(i, 1):val(each.place[1])
          sites(i, 2):val(each.place[2])
          sites(i, 3):val(each.kind)
        end
        return sites
      end
  }
  observations[#observations + 1] = {
      name = 'WORLD.WITNESS',
      type = 'tensor.DoubleTensor',
      shape = {size},
      func = function(grid)
        local at = 0
        local function put(value)
          at = at + 1
          report(at):val(value)
        end
        for _, object in ipairs(self._players) do player(object, put) end
        for _, each in ipairs(self._sites) do site(each.kind, each.object, put) end
        self._turns = 0
        return report
      end
  }
end

component_registry.registerAllComponents{Watched = Watched, Witness = Witness}

return {Witness = Witness}
